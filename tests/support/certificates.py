"""Certificates that tests make."""

import shutil
import subprocess

import pytest


def make_certificate(folder):
    """Return the paths of (a certificate, its key), new in a folder; it is its own authority. Skips without openssl."""
    if not shutil.which("openssl"):
        pytest.skip("openssl, which makes the certificates, is not installed")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "key.pem", "-out", "cert.pem", "-days",
         "2", "-subj", "/CN=localhost"],
        cwd=folder, check=True, capture_output=True,
    )  # fmt: skip
    return str(folder / "cert.pem"), str(folder / "key.pem")
