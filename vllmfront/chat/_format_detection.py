"""Whether a template wants message contents as strings or as lists of parts, by its syntax."""

from jinja2 import nodes

from vllmfront.chat._content_format import ContentFormat


def detect_content_format(template: nodes.Template) -> ContentFormat:
    """Return OPENAI if *template* loops over the content of a message, else STRING.

    The content is followed through variables that are set to it or to the messages, through
    filters, and through the parameters of macros.
    """
    names = _Names()
    while names.learn_from(template):
        pass
    loops = template.find_all(nodes.For)
    if any(names.is_content(loop.iter) for loop in loops):
        return ContentFormat.OPENAI
    return ContentFormat.STRING


class _Names:
    """The variables that hold all messages, one message, or one message's content."""

    def __init__(self) -> None:
        self._messages = {"messages"}
        self._message: set[str] = set()
        self._content: set[str] = set()

    def learn_from(self, template: nodes.Template) -> bool:
        """Follow every assignment once; return whether anything new was found."""
        known = self._count()
        macros = {macro.name: macro for macro in template.find_all(nodes.Macro)}
        for node in template.find_all((nodes.For, nodes.Assign, nodes.Call)):
            if isinstance(node, nodes.For):
                if isinstance(node.target, nodes.Name) and self._is_messages(node.iter):
                    self._message.add(node.target.name)
            elif isinstance(node, nodes.Assign):
                if isinstance(node.target, nodes.Name):
                    self._bind(node.target.name, node.node)
            elif isinstance(node, nodes.Call) and isinstance(node.node, nodes.Name):
                macro = macros.get(node.node.name)
                if macro is not None:
                    self._bind_arguments(macro, node)
        return self._count() > known

    def is_content(self, node: nodes.Node) -> bool:
        node = _unfiltered(node)
        if isinstance(node, nodes.Name):
            return node.name in self._content
        if isinstance(node, nodes.CondExpr):
            branches = (node.expr1, node.expr2)
            return any(self.is_content(branch) for branch in branches if branch is not None)
        if isinstance(node, nodes.Or):
            return self.is_content(node.left) or self.is_content(node.right)
        return _member(node) == "content" and self._is_message(_owner(node))

    def _is_message(self, node: nodes.Node) -> bool:
        if isinstance(node, nodes.Name):
            return node.name in self._message
        return (
            isinstance(node, nodes.Getitem)
            and not isinstance(node.arg, nodes.Slice)
            and self._is_messages(node.node)
        )

    def _is_messages(self, node: nodes.Node) -> bool:
        node = _unfiltered(node)
        if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice):
            return self._is_messages(node.node)
        return isinstance(node, nodes.Name) and node.name in self._messages

    def _bind(self, name: str, value: nodes.Node) -> None:
        if self._is_messages(value):
            self._messages.add(name)
        elif self._is_message(value):
            self._message.add(name)
        elif self.is_content(value):
            self._content.add(name)

    def _bind_arguments(self, macro: nodes.Macro, call: nodes.Call) -> None:
        for parameter, argument in zip(macro.args, call.args, strict=False):
            self._bind(parameter.name, argument)
        for keyword in call.kwargs:
            self._bind(keyword.key, keyword.value)

    def _count(self) -> int:
        return len(self._messages) + len(self._message) + len(self._content)


def _unfiltered(node: nodes.Node) -> nodes.Node:
    while isinstance(node, nodes.Filter) and node.node is not None:
        node = node.node
    return node


def _member(node: nodes.Node) -> str | None:
    if isinstance(node, nodes.Getattr):
        return node.attr
    if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Const):
        return node.arg.value if isinstance(node.arg.value, str) else None
    return None


def _owner(node: nodes.Node) -> nodes.Node:
    assert isinstance(node, nodes.Getattr | nodes.Getitem)
    return node.node
