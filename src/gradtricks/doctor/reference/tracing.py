"""Where the paths of a gradient are cut: every path is walked, one by one."""

from collections.abc import Collection, Iterator, Sequence

from gradtricks.doctor.operations import Operation

Step = tuple[int, Operation]


def first_cuts(operations: Sequence[Operation], source: int, outputs: Collection[int]) -> set[str] | None:
    """Name the first operation on each path that passes no gradient on.

    What another path reaches whole isn't cut. None where a path from ``source`` to an output is whole. Each
    operation has one output.
    """
    paths = [path for path in _paths(operations, source) if path and path[-1][1].outputs[0] in outputs]
    whole, cuts = {source}, set[int]()
    for path in _paths(operations, source):
        if all(tensor in operation.carries for tensor, operation in path):
            whole |= {operation.outputs[0] for _, operation in path}
    if whole & set(outputs):
        return None
    for path in paths:
        cut = next(operation for tensor, operation in path if tensor not in operation.carries)
        cuts |= {operations.index(cut)} if cut.outputs[0] not in whole else set()
    return {operations[index].name for index in cuts}


def _paths(operations: Sequence[Operation], source: int) -> Iterator[list[Step]]:
    yield []
    for operation in operations:
        if source in operation.inputs:
            for rest in _paths(operations, operation.outputs[0]):
                yield [(source, operation), *rest]
