"""A server whose clients speak HTTP/1.1 does not carry the library."""

import subprocess
import sys

_LOOK = "import sys, topics.server; print([name for name in sys.modules if name in ('h2', 'hpack', 'topics.http.h2')])"


def test_nothing_of_it_is_imported_before_it_is_needed() -> None:
    found = subprocess.run([sys.executable, "-c", _LOOK], check=True, capture_output=True, text=True)
    assert found.stdout.strip() == "[]"
