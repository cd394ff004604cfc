"""The element types of arrays: ``ddprun_type`` of ``ddprun/c/c_base.h``, in one table."""

from __future__ import annotations

from typing import NamedTuple


class ElementType(NamedTuple):
    """One of them. Its place in ELEMENT_TYPES is its number in the C interface."""

    name: str  # That of numpy and torch.
    size: int  # Bytes.
    formats: tuple[str, ...]  # Of the buffer protocol, which has none for bfloat16.


ELEMENT_TYPES = (
    ElementType("float32", 4, ("f",)),
    ElementType("float64", 8, ("d",)),
    ElementType("float16", 2, ("e",)),
    ElementType("bfloat16", 2, ()),
    ElementType("int32", 4, ("i", "l")),
    ElementType("int64", 8, ("q", "l")),
    ElementType("uint8", 1, ("B", "c")),
    ElementType("int8", 1, ("b",)),
    ElementType("int16", 2, ("h",)),
    ElementType("uint16", 2, ("H",)),
    ElementType("uint32", 4, ("I", "L")),
    ElementType("uint64", 8, ("Q", "L")),
    ElementType("bool", 1, ("?",)),
    ElementType("complex64", 8, ("Zf", "F")),
    ElementType("complex128", 16, ("Zd", "D")),
)

NUMBERS = {each.name: number for number, each in enumerate(ELEMENT_TYPES)}

# "l" and "L" have the size that the platform's C gives them.
BY_FORMAT = {
    (code, each.size): number for number, each in enumerate(ELEMENT_TYPES) for code in each.formats
}
