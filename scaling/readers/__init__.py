"""Readers of other people's tables: bytes in, one `RawTable` per file out, nothing interpreted yet."""

from scaling.readers.raw import RawTable, read_tables

__all__ = ["RawTable", "read_tables"]
