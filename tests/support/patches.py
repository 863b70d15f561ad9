"""What a module's source changes in other packages: attributes and items of their modules and classes, by any spelling.

A value is foreign if it is an imported module or name of another package, what `load` or `import_module` returns, or an
attribute of such a value; also through local names, loops, and parameters for which a call in the module passes one. A
call of another package returns an object that is the caller's own, unless the function itself was got by `load`.
What an object of ours keeps in a private field and goes through in a loop is foreign where `setattr` changes it.
"""

import ast

_OURS = "official_trainer"
_LAZY = {"tf", "keras"}  # of `official_trainer.lazy`
_LOADERS = {"load", "import_module", "__import__"}
_SETTERS = {"setattr", "delattr", "__setattr__", "__delattr__"}
_CHANGES = {
    "append",
    "clear",
    "extend",
    "insert",
    "pop",
    "remove",
    "setdefault",
    "update",
    "__setitem__",
    "__delitem__",
}
_NO_PATCH = ("os.environ",)
_FUNCTIONS = {"os.remove", "tf.io.gfile.remove"}  # of modules: they change none
_FOREIGN = ast.Constant("foreign")


def patches(source):
    """Returns the expressions that are changed: `tf.data.Dataset.map`; `setattr(operations, …)` for a computed name."""
    tree = ast.parse(source)
    module = _Module(tree)
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
            changed, text = node.value, ast.unparse(node)
        elif isinstance(node, ast.Call) and _name(node.func) in _SETTERS and node.args:
            changed, text = node.args[0], f"{_name(node.func)}({ast.unparse(node.args[0])}, …)"
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _CHANGES:
            changed, text = node.func.value, ast.unparse(node.func)
        elif isinstance(node, ast.Call) and "patch" in ast.unparse(node.func).split("."):
            changed, text = _FOREIGN, ast.unparse(node)
        else:
            continue
        if isinstance(node, ast.Call) and _name(node.func) in _SETTERS and module.is_from_a_field(changed):
            found.add(text)
        is_patch = text not in _FUNCTIONS and not ast.unparse(changed).startswith(_NO_PATCH)
        if is_patch and module.is_foreign(changed):
            found.add(text)
    return found


def _name(node):
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


class _Module:
    """What each name is bound to, by the function or module around it."""

    def __init__(self, tree):
        self._scope, self._bound, self._functions, self._methods = {}, {}, {}, set()
        self._walk(tree, tree)
        for node in list(self._scope):
            self._bind(node)

    def is_foreign(self, node, seen=frozenset()):
        """Whether an expression is a module or a class of another package, or a part of one."""
        if node is _FOREIGN:
            return True
        if isinstance(node, ast.Name):
            values = [] if (node.id, self._scope.get(node)) in seen else self._values(node)
            return any(self.is_foreign(value, seen | {(node.id, self._scope.get(node))}) for value in values)
        if isinstance(node, ast.Attribute | ast.Subscript | ast.Starred):
            return getattr(node, "attr", "") == "__class__" or self.is_foreign(node.value, seen)
        if isinstance(node, ast.BoolOp | ast.IfExp):
            return any(
                self.is_foreign(each, seen) for each in getattr(node, "values", None) or (node.body, node.orelse)
            )
        if isinstance(node, ast.NamedExpr | ast.For | ast.comprehension):
            inner = node.value if isinstance(node, ast.NamedExpr) else node.iter
            return self.is_foreign(inner, seen) or any(self.is_foreign(each, seen) for each in self._elements(inner))
        if isinstance(node, ast.Call):
            if _name(node.func) in ("vars", "getattr") and node.args:
                return self.is_foreign(node.args[0], seen)
            return _name(node.func) in {"type", *_LOADERS} or _is_loaded(node.func)
        return False

    def is_from_a_field(self, node):
        """Whether a name goes through what `self` keeps in a private field."""
        loops = [each for each in self._values(node) if isinstance(each, ast.For)] if isinstance(node, ast.Name) else []
        return any(ast.unparse(each.iter).startswith("self._") for each in loops)

    def _elements(self, node):
        """Returns the parts of a literal, or of the one that a name is bound to."""
        values = self._values(node) if isinstance(node, ast.Name) else [node]
        literals = [each for each in values if isinstance(each, ast.Tuple | ast.List | ast.Dict)]
        return [part for each in literals for part in ast.walk(each) if isinstance(part, ast.Attribute | ast.Name)]

    def _values(self, name):
        scope = self._scope.get(name)
        while scope is not None:
            if (scope, name.id) in self._bound:
                return self._bound[scope, name.id]
            scope = self._scope.get(scope)
        return []

    def _walk(self, node, scope):
        for child in ast.iter_child_nodes(node):
            self._scope[child] = scope
            is_function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            if is_function and not isinstance(child, ast.Lambda):
                self._functions.setdefault(child.name, []).append(child)
                self._methods |= {child} if isinstance(node, ast.ClassDef) else set()
            self._walk(child, child if is_function else scope)

    def _add(self, name, value, scope):
        self._bound.setdefault((scope, name), []).append(value)

    def _bind(self, node):
        scope = self._scope[node]
        if isinstance(node, ast.Import | ast.ImportFrom):
            package = getattr(node, "module", None) or ("" if isinstance(node, ast.Import) else _OURS)
            for alias in node.names:
                is_ours = (package or alias.name).partition(".")[0] == _OURS
                if not is_ours or (package.endswith(".lazy") and alias.name in _LAZY):
                    self._add(alias.asname or alias.name.partition(".")[0], _FOREIGN, scope)
        elif isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr) and node.value is not None:
            for target in getattr(node, "targets", None) or [node.target]:
                self._bind_target(target, node.value, scope)
        elif isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
            self._bind_target(node.target, node, scope)
        elif isinstance(node, ast.withitem) and node.optional_vars is not None:
            self._bind_target(node.optional_vars, node.context_expr, scope)
        elif isinstance(node, ast.Call):
            for function in self._functions.get(_name(node.func), ()):
                names = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
                names = names[1:] if function in self._methods else names
                given = [*zip(names, node.args, strict=False), *((each.arg, each.value) for each in node.keywords)]
                for name, value in given:
                    self._add(name, value, function)

    def _bind_target(self, target, value, scope):
        if isinstance(target, ast.Name):
            self._add(target.id, value, scope)
        elif isinstance(target, ast.Tuple | ast.List):
            parts = value.elts if isinstance(value, ast.Tuple) else [value] * len(target.elts)
            for each, part in zip(target.elts, parts, strict=False):
                self._bind_target(each, part, scope)


def _is_loaded(node):
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Call) and (_name(node.func) in _LOADERS or _is_loaded(node.func))
