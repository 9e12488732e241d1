"""YAML without types, which the notebook's parameters have: scalars stay as they were written."""

from typing import Any

import yaml

from gradtricks.lab.notebooks.texts import ParameterError, Plain, without_twins

__all__ = ["read_yaml"]


def read_yaml(text: str) -> Any:
    """Read YAML; unquoted scalars stay texts, as `Plain`.

    Tags and aliases are refused, so a file can neither make objects nor grow when it is read.
    """
    try:
        return yaml.load(text, _Loader)  # noqa: S506  # it makes texts, lists and dicts of texts only
    except yaml.YAMLError as error:
        raise ParameterError(" ".join(str(error).split())) from error
    except RecursionError:
        raise ParameterError("expected YAML; got something nested too deep") from None


class _Loader(yaml.BaseLoader):
    """Makes a text of everything but lists and mappings."""

    def compose_node(self, parent: Any, index: Any) -> yaml.Node:
        event = self.peek_event()
        if isinstance(event, yaml.AliasEvent) or event.anchor or event.tag:
            raise ParameterError(
                f"line {event.start_mark.line + 1}: anchors, aliases and tags aren't allowed; "
                "remedy: write the value out"
            )
        return super().compose_node(parent, index)

    def construct_scalar(self, node: yaml.Node) -> str:
        return Plain(node.value) if node.style is None else node.value

    def construct_mapping(self, node: yaml.Node, deep: bool = False) -> dict[str, Any]:
        pairs = [(self.construct_object(key), self.construct_object(value)) for key, value in node.value]
        try:
            return without_twins([(str(key), value) for key, value in pairs])
        except ValueError as error:
            raise ParameterError(f"line {node.start_mark.line + 1}: {error}") from error
