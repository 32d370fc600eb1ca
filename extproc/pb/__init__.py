"""Generated from proto/ by `make proto`; never edited. Read by `extproc.wire` alone."""
