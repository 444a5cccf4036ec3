"""Hashes, ciphers, the session and its server, geography, checks."""

from solstice.connect._column import Column, ColumnOrName
from solstice.connect.functions._maker import call, column, value
from solstice.errors import InvalidPlanError

TABLE = {
    "aes_decrypt(input, key, mode=lit('GCM'), padding=lit('DEFAULT'), aad=lit(''))": "Bytes decrypted by AES.",
    "aes_encrypt(input, key, mode=lit('GCM'), padding=lit('DEFAULT'), iv=lit(''), aad=lit(''))": (
        "Text or bytes encrypted by AES."
    ),
    "assert_true(col, errMsg: Column | str = None)": "NULL where a condition holds; fails where it does not.",
    "crc32(col)": "The CRC-32 check sum.",
    "current_catalog()": "The current catalog.",
    "current_database()": "The current database.",
    "current_path()": "Where names of functions and tables are looked up.",
    "current_schema()": "The current schema.",
    "current_user()": "The user who runs the query.",
    "hash(*cols)": "A hash of columns, in 32 bits.",
    "hmac(key, message, algorithm=None)": "A message's authentication code.",
    "input_file_block_length()": "The length of the block of the file that is read.",
    "input_file_block_start()": "The start of the block of the file that is read.",
    "input_file_name()": "The file that the row is read from.",
    "java_method(*cols)": "The answer of a static method of Java: class, method, arguments.",
    "md5(col)": "The MD5 sum, in hexadecimal.",
    "monotonically_increasing_id()": "Numbers that grow and are unique, but not without gaps.",
    "raise_error(errMsg: Column | str)": "Fails with a message.",
    "reflect(*cols)": "The answer of a static method of Java: class, method, arguments.",
    "session_user()": "The user of the session.",
    "sha(col)": "The SHA-1 sum, in hexadecimal.",
    "sha1(col)": "The SHA-1 sum, in hexadecimal.",
    "spark_partition_id()": "The number of the partition that the row is in.",
    "st_geogfromwkb(wkb)": "A geography out of its well-known binary form.",
    "st_geomfromwkb(wkb, srid: ColumnOrName | int = None)": "A geometry out of its well-known binary form.",
    "st_setsrid(geo, srid: ColumnOrName | int)": "A geography or geometry with another reference system.",
    "st_srid(geo)": "The number of the reference system of a geography or geometry.",
    "try_aes_decrypt(input, key, mode=lit('GCM'), padding=lit('DEFAULT'), aad=lit(''))": (
        "Like ``aes_decrypt``, with NULL where it does not work."
    ),
    "try_reflect(*cols)": "Like ``reflect``, with NULL where the method fails.",
    "typeof(col)": "The type, as text.",
    "unwrap_udt(col)": "A value of a user-defined type as it is stored.",
    "user()": "The user who runs the query.",
    "uuid(seed: Column | int = random_seed())": "A random UUID, as text.",
    "version()": "Spark's version.",
    "xxhash64(*cols)": "A hash of columns, in 64 bits.",
}


def sha2(col: ColumnOrName, numBits: int) -> Column:
    """A sum of the SHA-2 family, in hexadecimal: 224, 256, 384 or 512 bits; 0 is 256."""
    if numBits not in (0, 224, 256, 384, 512):
        raise InvalidPlanError(f"sha2() cannot have {numBits!r} bits.", remedy="Pass 0, 224, 256, 384 or 512.")
    return call("sha2", column(col), value(numBits))


def st_asbinary(geo: ColumnOrName, endianness: Column | str | None = None) -> Column:
    """The well-known binary form of a geography or geometry; the order of bytes is NDR or XDR."""
    return call("st_asbinary", column(geo), None if endianness is None else value(endianness))
