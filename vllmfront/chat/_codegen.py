"""Python code for templates, with the places at which a budget is asked."""

from typing import Any

from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame

_SPEND = "spend"


def insert_steps(template: nodes.Template) -> nodes.Template:
    """Make every loop turn, macro call and block of a parsed template pay for its nodes."""
    for body in list(template.find_all((nodes.For, nodes.Macro, nodes.CallBlock, nodes.Block))):
        assert isinstance(body, nodes.For | nodes.Macro | nodes.CallBlock | nodes.Block)
        body.body.insert(0, nodes.ExprStmt(_step(_weight(body)), lineno=body.lineno))
        if isinstance(body, nodes.For) and body.test is not None:
            body.test = nodes.And(_step(1), body.test, lineno=body.lineno)
    template.set_environment(template.environment)  # type: ignore[arg-type]
    return template


def _step(weight: int) -> nodes.Expr:
    # No template's text can give this node: attributes of the environment are out of reach.
    return nodes.Call(
        nodes.EnvironmentAttribute(_SPEND), [nodes.Const(weight)], [], None, None, lineno=1
    )


def count_nodes(top: nodes.Node) -> int:
    """Count *top* and all nodes below it."""
    return _count(top, ())


def _weight(body: nodes.Node) -> int:
    """Count the nodes below *body*, without those that pay for themselves."""
    return _count(body, (nodes.For, nodes.Macro, nodes.CallBlock, nodes.Block))


def _count(top: nodes.Node, closed: tuple[type[nodes.Node], ...]) -> int:
    """Count *top* and what is below it, but not what is below nodes of the *closed* kinds."""
    count = 1
    stack = list(top.iter_child_nodes())
    while stack:
        node = stack.pop()
        count += 1
        if not isinstance(node, closed):
            stack.extend(node.iter_child_nodes())
    return count


class SteppingGenerator(CodeGenerator):
    """Writes the steps as plain calls, past the sandbox, which need not judge them."""

    def visit_Call(self, node: nodes.Call, frame: Frame, forward_caller: bool = False) -> None:  # noqa: N802 - Jinja's name
        if isinstance(node.node, nodes.EnvironmentAttribute) and node.node.name == _SPEND:
            self.write(f"environment.{_SPEND}({node.args[0].as_const()})")
        else:
            super().visit_Call(node, frame, forward_caller=forward_caller)


class MeteringGenerator(SteppingGenerator):
    """Sends everything that makes or walks through a value by way of the environment."""

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802 - Jinja's name
        self._wrap("join_parts", frame, node.nodes)

    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:  # noqa: N802 - Jinja's name
        if not isinstance(node.arg, nodes.Slice):
            super().visit_Getitem(node, frame)
            return
        part = node.arg
        none = nodes.Const(None)
        bounds = [part.start or none, part.stop or none, part.step or none]
        self._wrap("cut", frame, [node.node, *bounds])

    def visit_List(self, node: nodes.List, frame: Frame) -> None:  # noqa: N802 - Jinja's name
        self._built(super().visit_List, node, frame)

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:  # noqa: N802 - Jinja's name
        self._built(super().visit_Dict, node, frame)

    def visit_Tuple(self, node: nodes.Tuple, frame: Frame) -> None:  # noqa: N802 - Jinja's name
        if node.ctx == "load":
            self._built(super().visit_Tuple, node, frame)
        else:
            super().visit_Tuple(node, frame)

    def visit_Compare(self, node: nodes.Compare, frame: Frame) -> None:  # noqa: N802 - Jinja's name
        self.write("(")
        self._wrap("comparable", frame, [node.expr])
        for operand in node.ops:
            self.write(f" {_OPERATORS[operand.op]} ")
            self._wrap("comparable", frame, [operand.expr])
        self.write(")")

    def _built(self, visit: Any, node: nodes.Expr, frame: Frame) -> None:
        self.write("environment.built(")
        visit(node, frame)
        self.write(")")

    def _wrap(self, name: str, frame: Frame, arguments: list[nodes.Expr]) -> None:
        self.write(f"environment.{name}(")
        for argument in arguments:
            self.visit(argument, frame)
            self.write(", ")
        self.write(")")


_OPERATORS = {
    "eq": "==",
    "ne": "!=",
    "gt": ">",
    "gteq": ">=",
    "lt": "<",
    "lteq": "<=",
    "in": "in",
    "notin": "not in",
}
