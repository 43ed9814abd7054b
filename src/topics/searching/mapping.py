"""Files of the searching process. It opens those that it is told of, to read them, and knows no others."""

import mmap


def map_file(path: str) -> memoryview:
    """All of a file, mapped. The mapping stays when the name goes."""
    with open(path, "rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
