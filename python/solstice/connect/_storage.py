"""Where cached data is kept."""

from typing import ClassVar

from solstice.connect._camel import camel_cased
from solstice.connect._expressions import Node


@camel_cased()
class StorageLevel(Node):
    """Where cached data is kept: on disk, in memory, as objects or as bytes, and how many times."""

    use_disk: bool
    use_memory: bool
    use_off_heap: bool
    deserialized: bool
    replication: int = 1

    def __repr__(self) -> str:
        return f"StorageLevel({', '.join(map(repr, self._values()))})"

    def __str__(self) -> str:
        """In words, as PySpark has them."""
        places = {"Disk": self.use_disk, "Memory": self.use_memory, "OffHeap": self.use_off_heap}
        form = "Deserialized" if self.deserialized else "Serialized"
        return " ".join([*(place for place, used in places.items() if used), form, f"{self.replication}x Replicated"])

    NONE: ClassVar["StorageLevel"]
    DISK_ONLY: ClassVar["StorageLevel"]
    DISK_ONLY_2: ClassVar["StorageLevel"]
    DISK_ONLY_3: ClassVar["StorageLevel"]
    MEMORY_ONLY: ClassVar["StorageLevel"]
    MEMORY_ONLY_2: ClassVar["StorageLevel"]
    MEMORY_AND_DISK: ClassVar["StorageLevel"]
    MEMORY_AND_DISK_2: ClassVar["StorageLevel"]
    OFF_HEAP: ClassVar["StorageLevel"]
    MEMORY_AND_DISK_DESER: ClassVar["StorageLevel"]


StorageLevel.NONE = StorageLevel(False, False, False, False)
StorageLevel.DISK_ONLY = StorageLevel(True, False, False, False)
StorageLevel.DISK_ONLY_2 = StorageLevel(True, False, False, False, 2)
StorageLevel.DISK_ONLY_3 = StorageLevel(True, False, False, False, 3)
StorageLevel.MEMORY_ONLY = StorageLevel(False, True, False, False)
StorageLevel.MEMORY_ONLY_2 = StorageLevel(False, True, False, False, 2)
StorageLevel.MEMORY_AND_DISK = StorageLevel(True, True, False, False)
StorageLevel.MEMORY_AND_DISK_2 = StorageLevel(True, True, False, False, 2)
StorageLevel.OFF_HEAP = StorageLevel(True, True, True, False)
StorageLevel.MEMORY_AND_DISK_DESER = StorageLevel(True, True, False, True)
