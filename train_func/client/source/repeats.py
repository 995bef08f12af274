"""The mutable objects that several values hold, so that in a worker they hold one object, too."""


class Repeats:
    """What a first writing of all values has met more than once, by module."""

    def __init__(self) -> None:
        self._met: dict[tuple[str, int], object] = {}
        self._again: set[tuple[str, int]] = set()

    def meets_again(self, value: object, module: str) -> bool:
        """Whether the object was met before."""
        key = module, id(value)
        if key in self._met:
            self._again.add(key)
            return True
        self._met[key] = value  # it lives as long as its id counts
        return False

    def holds(self, value: object, module: str) -> bool:
        """Whether several values of the module hold the object."""
        return (module, id(value)) in self._again
