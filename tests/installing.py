"""Python environments of a test's own, made with uv: pip takes ten times as long.

uv is where `make` puts it, or on PATH. It keeps what it has downloaded or built outside the folder of the test.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
_OF_MAKE: Final = ROOT / ".cache/uv/bin/uv"

#: The program; `None` if there is none.
UV: Final = str(_OF_MAKE) if _OF_MAKE.exists() else shutil.which("uv")

#: What a machine needs to reach its package index.
_KEPT: Final = (
    *("LANG", "SSL_CERT_FILE", "SSL_CERT_DIR", "PIP_INDEX_URL", "PIP_CONFIG_FILE", "http_proxy", "https_proxy"),
)


def missing() -> str:
    """Return why no environment can be made here; "" if one can."""
    return "" if UV else "uv is not installed here"


def environment() -> dict[str, str]:
    """Return variables for programs that know nothing of these tests, but may install packages."""
    kept = {name: text for name, text in os.environ.items() if name in _KEPT or name.startswith("UV_")}
    kept.pop("UV_PROJECT_ENVIRONMENT", None)
    return {**kept, "UV_CACHE_DIR": _cache()}


def create_environment(folder: Path, *options: str) -> None:
    """Create an environment with this Python and without any package, not even pip, which `--seed` adds."""
    assert UV
    subprocess.run([UV, "venv", "--quiet", "--python", sys.executable, *options, folder], check=True)


@cache
def _cache() -> str:
    """Return where uv keeps packages, though HOME be another one."""
    assert UV
    return subprocess.run([UV, "cache", "dir"], capture_output=True, check=True, text=True).stdout.strip()
