"""Build step of the client: generates the synchronous client. Everything else is in pyproject.toml."""

import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

# Build backends run this file without the folder of the tools on the path.
sys.path.insert(0, str(Path(__file__).parents[2]))

from tools import sync_client


class BuildWithSyncClient(build_py):
    def run(self) -> None:
        sync_client.main()
        super().run()


setup(cmdclass={"build_py": BuildWithSyncClient})
