"""A real REST catalog of Iceberg over loopback, in its own process: the server that Iceberg's own tests run on.

Its jars come from Maven by way of Ivy, which Spark brings along, into a folder beside the packages; then it needs no
network. It stores its data in a SQLite file.
"""

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Self

import pyspark

from tests.s3 import S3Server
from topics.spark.java import java_home

_ICEBERG, _JETTY, _SQLITE = "1.11.0", "12.1.4", "3.50.3.0"
_HOME = Path(sys.prefix) / f"rest-catalog-{_ICEBERG}"
_SPARK = Path(pyspark.__file__).parent / "jars"
_PATIENCE_S = 600
_NEEDED = f"""
<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">
  <info organisation="topics" module="rest-catalog"/>
  <dependencies>
    <dependency org="org.apache.iceberg" name="iceberg-core" rev="{_ICEBERG}" conf="default->default">
      <artifact name="iceberg-core" type="jar"/>
      <artifact name="iceberg-core" type="jar" m:classifier="tests"/>
    </dependency>
    <dependency org="org.apache.iceberg" name="iceberg-open-api" rev="{_ICEBERG}" conf="default->default">
      <artifact name="iceberg-open-api" type="jar" m:classifier="test-fixtures"/>
    </dependency>
    <dependency org="org.apache.iceberg" name="iceberg-aws" rev="{_ICEBERG}" transitive="false"/>
    <dependency org="org.apache.iceberg" name="iceberg-aws-bundle" rev="{_ICEBERG}" conf="default->default"/>
    <dependency org="dev.failsafe" name="failsafe" rev="3.3.2" conf="default->default"/>
    <dependency org="org.xerial" name="sqlite-jdbc" rev="{_SQLITE}" conf="default->default"/>
    <dependency org="org.eclipse.jetty.ee10" name="jetty-ee10-servlet" rev="{_JETTY}" conf="default->default"/>
    <dependency org="org.eclipse.jetty.compression" name="jetty-compression-server" rev="{_JETTY}"
                conf="default->default"/>
    <dependency org="org.eclipse.jetty.compression" name="jetty-compression-gzip" rev="{_JETTY}"
                conf="default->default"/>
  </dependencies>
</ivy-module>
"""


class RestCatalogServer:
    """Leaving the `with` block ends it."""

    def __init__(self, folder: Path, store: S3Server | None = None) -> None:
        """The tables are in folders, or in an object store."""
        self._folder = folder
        self._store = store
        self._process: subprocess.Popen[bytes] | None = None
        self.url = ""

    def __enter__(self) -> Self:
        java = str(Path(java_home()) / "bin" / "java")
        if not _HOME.is_dir():
            self._install(java)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        jars = os.pathsep.join([f"{_HOME}/*", f"{_SPARK}/*"])
        words = {
            "CATALOG_REST_PORT": str(port),
            "CATALOG_CATALOG__IMPL": "org.apache.iceberg.jdbc.JdbcCatalog",
            "CATALOG_URI": f"jdbc:sqlite:{self._folder}/catalog.db",
            "CATALOG_IO__IMPL": "org.apache.iceberg.hadoop.HadoopFileIO",
            "CATALOG_WAREHOUSE": str(self._folder / "warehouse"),
        }
        if self._store is not None:
            words |= {
                "CATALOG_IO__IMPL": "org.apache.iceberg.aws.s3.S3FileIO",
                "CATALOG_S3_ENDPOINT": self._store.environment["AWS_ENDPOINT_URL"],
                "CATALOG_S3_PATH__STYLE__ACCESS": "true",
                **self._store.environment,
            }
        self._process = subprocess.Popen(
            [java, "-Xmx256m", "-XX:+UseSerialGC", "-cp", jars, "org.apache.iceberg.rest.RESTCatalogServer"],
            env={**os.environ, **words},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._wait()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def _install(self, java: str) -> None:
        [ivy] = _SPARK.glob("ivy-*.jar")
        needed = self._folder / "ivy.xml"
        needed.write_text(_NEEDED, encoding="utf-8")
        fresh = self._folder / "jars"
        names = f"{fresh}/[artifact]-[revision](-[classifier]).[ext]"
        command = [java, "-jar", str(ivy), "-cache", f"{self._folder}/ivy", "-ivy", str(needed), "-retrieve", names]
        subprocess.run(command, check=True, timeout=_PATIENCE_S, stdout=subprocess.DEVNULL)
        # All of them, or none: the next run asks for the folder only.
        subprocess.run(["cp", "-r", str(fresh), f"{_HOME}.new"], check=True)
        os.rename(f"{_HOME}.new", _HOME)

    def _wait(self) -> None:
        give_up = time.monotonic() + _PATIENCE_S
        while True:
            try:
                with urllib.request.urlopen(f"{self.url}/v1/config", timeout=10):
                    return
            except (urllib.error.URLError, OSError):
                assert self._process is not None and self._process.poll() is None, "the catalog did not start"
                assert time.monotonic() < give_up, "the catalog does not answer"
                time.sleep(0.2)
