"""HDFS as a file system of `pyarrow.fs`, by hdfs-native, which needs neither Java nor Hadoop.

How it works. hdfs-native speaks HDFS' own protocol and offers fsspec's interface, which
`pyarrow.fs` adapts. A Hadoop configuration, if HADOOP_CONF_DIR or HADOOP_HOME names one, says which
name nodes a name service has, and whether Kerberos is used. An object's age decides what the
collector deletes, and the adapter looks for it under another name than hdfs-native gives it.

Not here: what the errors mean (`store_errors.py`), how objects are written (`store.py`).
"""

from __future__ import annotations

from typing import Any

import pyarrow.fs as pafs

from semel.tier.errors import TierMisconfigured


def hdfs_file_system(host: str, port: int | None, shown: str) -> Any:
    """Returns the file system of a name node, or of a name service (no port).

    Raises TierMisconfigured if hdfs-native is not installed; an address that is wrong shows with
    the first call.
    """
    try:
        from hdfs_native.fsspec import HdfsFileSystem
    except ImportError as error:
        raise TierMisconfigured(
            f"{shown}: HDFS needs the package hdfs-native; install semel[hdfs]"
        ) from error

    class _WithTimes(HdfsFileSystem):
        """Gives the time of the last change as `pyarrow.fs` expects it, in seconds."""

        def _convert_file_status(self, file_status: Any) -> dict[str, Any]:
            found: dict[str, Any] = super()._convert_file_status(file_status)
            return {**found, "mtime": file_status.modification_time / 1_000}

    return pafs.PyFileSystem(pafs.FSSpecHandler(_WithTimes(host, port)))
