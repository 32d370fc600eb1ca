"""Doctor: an operator's engines, by their own metrics: what is wrong, what to do, and what that is worth.

    samples -> stays -> figures -> rules -> findings
                          └-> traffic -> twin -> gains ┘

Samples are taken by the shell (cli.targets) from engines, a Prometheus server or files; all that follows is a
function of them. Nothing here changes an engine, and none of it needs kvring to run.

Called by: cli.doctor, docs/generate.py, tests.
"""
