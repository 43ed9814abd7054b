"""A real metastore of Hive over loopback, in its own process. Spark's distribution includes its jars and the jars of
its database, so nothing is downloaded."""

import os
import socket
import subprocess
import time
from pathlib import Path
from typing import Self

import pyspark

from topics.spark.java import java_home

_JARS = Path(pyspark.__file__).parent / "jars"
_PATIENCE_S = 300
_OPENED = ("java.base/java.net=ALL-UNNAMED", "java.base/java.lang=ALL-UNNAMED")


class HiveMetastore:
    """Leaving the `with` block ends it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._port = 0

    @property
    def url(self) -> str:
        return f"thrift://127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        # The tables for locks an operator makes by a script that no jar has. A metastore configured like Hive's own
        # tests creates them at the first transaction, but refuses the locks of every other client.
        try:
            self._start(**{"hive.in.test": "true"})
            self._ask_for_transactions()
            self._end()
            self._start()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def _start(self, **further: str) -> None:
        self._configure(further)
        command = [str(Path(java_home()) / "bin" / "java"), "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        for package in _OPENED:
            command += ["--add-opens", package]
        command += [f"-Djava.io.tmpdir={self._folder}", "-cp", os.pathsep.join([str(self._folder), f"{_JARS}/*"])]
        command += ["org.apache.hadoop.hive.metastore.HiveMetaStore", "-p", str(self._port)]
        with (self._folder / "metastore.log").open("wb") as log:
            self._process = subprocess.Popen(command, cwd=self._folder, stdout=log, stderr=log)
        self._wait()

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _configure(self, further: dict[str, str]) -> None:
        words = {
            "javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={self._folder}/database;create=true",
            "datanucleus.schema.autoCreateAll": "true",
            "hive.metastore.schema.verification": "false",
            "hive.metastore.warehouse.dir": f"file://{self._folder}/warehouse",
            # A pool of connections, and asynchronous logs, would want jars that Spark does not bring.
            "datanucleus.connectionPoolingType": "none",
            "hive.async.log.enabled": "false",
            **further,
        }
        lines = [f"<property><name>{name}</name><value>{value}</value></property>" for name, value in words.items()]
        text = "\n".join(["<configuration>", *lines, "</configuration>"])
        (self._folder / "hive-site.xml").write_text(text, encoding="utf-8")

    def _ask_for_transactions(self) -> None:
        from pyiceberg.catalog.hive import _HiveClient

        with _HiveClient(self.url) as client:
            client.get_open_txns()

    def _wait(self) -> None:
        give_up = time.monotonic() + _PATIENCE_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", self._port), timeout=10).close()
            except OSError:
                reported = self._folder / "metastore.log"
                assert self._process is not None and self._process.poll() is None, reported.read_text(encoding="utf-8")
                assert time.monotonic() < give_up, "the metastore does not answer"
                time.sleep(0.2)
            else:
                return
