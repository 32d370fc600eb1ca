"""Certificates are judged by the bytes that are then used; one at its end is used, and told."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from extproc import certificate, tls
from tests import certificates

ROOT = Path(__file__).parents[2]
DAY_S = 86_400


def test_the_end_is_that_of_the_first_certificate_whatever_else_is_in_the_chain():
    authority = certificates.Authority()
    chain, key = authority.issue(days=20)
    expired, _ = authority.issue(days=-5)
    for more in (b"", expired, authority.pem):
        assert certificate.ends_s(key, chain + more) == pytest.approx(time.time() + 20 * DAY_S, abs=60)


def test_one_file_may_hold_both_and_notes_of_any_letters():
    chain, key = certificates.Authority().issue()
    both = "# Tanúsítvány\n".encode() + chain + key
    assert certificate.ends_s(both, both) == certificate.ends_s(key, chain)


def test_what_is_no_pair_is_refused_and_says_why():
    authority = certificates.Authority()
    chain, key = authority.issue()
    _, other = authority.issue()
    private = serialization.load_pem_private_key(key, None)
    encrypted = private.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )
    for bad_key, bad_chain, why in (
        (other, chain, "another certificate's"),
        (encrypted, chain, "encrypted"),
        (b"", chain, "no PEM key"),
        (chain, chain, "no PEM key"),
        (key, key, "no PEM certificate"),
        (key, chain[:200], "no PEM certificate"),
        (key, b"\xff", "no PEM certificate"),
    ):
        with pytest.raises(ValueError, match=why):
            certificate.ends_s(bad_key, bad_chain)


def test_each_file_is_read_once_so_what_was_looked_at_is_what_is_used(tmp_path):
    """Pipes that give their content once: who opens one again waits for ever."""
    chain, key = certificates.Authority().issue()
    contents = {tmp_path / "tls.crt": chain, tmp_path / "tls.key": key}
    for path, content in contents.items():
        os.mkfifo(path)
        threading.Thread(target=path.write_bytes, args=[content], daemon=True).start()
    script = (
        "import sys, time; from pathlib import Path; from extproc import tls;"
        " tls.credentials(tls.Settings(*map(Path, sys.argv[1:])), ['localhost'], time.time); print('taken')"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *contents], cwd=ROOT, capture_output=True, text=True, check=False,
        timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "taken\n"), done.stderr


def test_an_end_that_comes_near_or_has_passed_is_told_once(tmp_path, caplog):
    authority = certificates.Authority()
    chain, key = authority.write(tmp_path, "tls", days=30)
    now = [time.time()]
    ends = []
    files = tls._Files(tls.Settings(chain, key), certificate, None, lambda: now[0], ends.append)

    def told():
        found = [(record.message, record.days_left) for record in caplog.records]
        caplog.clear()
        return found

    caplog.set_level(logging.WARNING, "kvring")
    files.read()
    assert ends == [pytest.approx(now[0] + 30 * DAY_S, abs=60)]
    assert told() == []
    for passed_days, expected in (
        (22.9, []),
        (0.2, [("certificate expires soon", 6.9)]),
        (1, []),
        (6, [("certificate has expired", -0.1)]),
        (1, []),
    ):
        now[0] += passed_days * DAY_S
        assert files.changed() is None
        assert told() == expected

    authority.write(tmp_path, "tls", days=365)
    assert files.changed() is not None
    assert told() == []
    assert len(ends) == 2
    authority.write(tmp_path, "tls", days=-1)
    assert files.changed() is not None, "used all the same"
    assert [message for message, _ in told()] == ["certificate has expired"]


def test_a_mounted_secret_that_kubernetes_swaps_as_a_whole_is_taken_over(tmp_path):
    """Links to links: NAME -> ..data/NAME, ..data -> the newest folder, put there by a rename."""
    authority = certificates.Authority()
    for version, days in (("v1", 10), ("v2", 20)):
        (tmp_path / version).mkdir()
        authority.write(tmp_path / version, "tls", days=days)
    (tmp_path / "..data").symlink_to("v1")
    for name in ("tls.crt", "tls.key"):
        (tmp_path / name).symlink_to(f"..data/{name}")
    ends = []
    settings = tls.Settings(tmp_path / "tls.crt", tmp_path / "tls.key")
    files = tls._Files(settings, certificate, None, time.time, ends.append)
    files.read()
    assert files.changed() is None
    (tmp_path / "..new").symlink_to("v2")
    (tmp_path / "..new").replace(tmp_path / "..data")
    assert files.changed() is not None
    assert ends == [pytest.approx(time.time() + days * DAY_S, abs=60) for days in (10, 20)]
