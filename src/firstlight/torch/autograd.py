"""The interface to autograd: values computed with their gradient, and second derivatives.

The functions have the form that `torch.func` asks for: what `backward` needs is an input or an
output of `forward`. Under `vmap` they are called for one row after another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch.autograd.function import FunctionCtx

from firstlight.errors import FirstlightError

#: The value and its gradient.
Compute = Callable[[Sequence[torch.Tensor]], tuple[torch.Tensor, torch.Tensor]]
#: Hessian times vectors: (tensors, vectors) → the products, concatenated in one tensor.
Product = Callable[[Sequence[torch.Tensor], Sequence[torch.Tensor]], torch.Tensor]
Gradients: TypeAlias = tuple[torch.Tensor | None, ...]


class DerivativeError(FirstlightError, NotImplementedError):
    """A derivative that a loss does not have; the message says which does."""


def applied(function: type[torch.autograd.Function], *arguments: object) -> Any:
    """`function.apply(*arguments)`, outside of transformations without binding a signature.

    Binding takes longer than a small likelihood.
    """
    if torch._C._are_functorch_transforms_active() or torch.compiler.is_compiling():
        return function.apply(*arguments)
    return super(torch.autograd.Function, function).apply(*arguments)


def row_by_row(
    function: type[torch.autograd.Function], info: Any, in_dims: Sequence[int | None], *given: Any
) -> tuple[Any, Any]:
    """The rule of a function for `torch.func.vmap`."""
    rows = [
        applied(
            function,
            *(a if d is None else a.select(d, i) for a, d in zip(given, in_dims, strict=True)),
        )
        for i in range(info.batch_size)
    ]
    if isinstance(rows[0], torch.Tensor):
        return torch.stack(rows), 0
    columns = tuple(torch.stack(column) for column in zip(*rows, strict=True))
    return columns, (0,) * len(columns)


class Number(torch.autograd.Function):
    """The value and its gradient; with rows of tensors, rows of both.

    Only the value is differentiated: its derivative is made from the gradient.
    """

    @staticmethod
    def forward(
        compute: Compute, product: Product | None, *tensors: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return compute(tensors)

    @staticmethod
    def setup_context(ctx: FunctionCtx, inputs: tuple[Any, ...], output: Any) -> None:
        _, ctx.product, *tensors = inputs
        _, gradient = output
        ctx.mark_non_differentiable(gradient)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(gradient, *tensors)
        ctx.save_for_forward(gradient, *tensors)

    @staticmethod
    def backward(ctx: FunctionCtx, *outer: torch.Tensor | None) -> Gradients:
        gradient, *tensors = ctx.saved_tensors
        by_value = outer[0]
        if by_value is None:
            return (None,) * (2 + len(tensors))
        if torch.is_grad_enabled():  # create_graph=True
            gradient = applied(Gradient, ctx.product, gradient, *tensors)
        factor = by_value.unsqueeze(-1) if by_value.ndim else by_value
        return (None, None, *_parts(factor * gradient, tensors))

    @staticmethod
    def jvp(ctx: FunctionCtx, *tangents: torch.Tensor | None) -> tuple[torch.Tensor, None]:
        gradient, *tensors = ctx.saved_tensors
        gradient = applied(Gradient, ctx.product, gradient, *tensors)
        return (gradient * _joined(tangents[2:], tensors, gradient)).sum(-1), None

    @staticmethod
    def vmap(info: Any, in_dims: Sequence[int | None], *given: Any) -> tuple[Any, Any]:
        return row_by_row(Number, info, in_dims, *given)


class Gradient(torch.autograd.Function):
    """The gradient as a function of the tensors."""

    @staticmethod
    def forward(
        product: Product | None, gradient: torch.Tensor, *tensors: torch.Tensor
    ) -> torch.Tensor:
        return gradient.clone()

    @staticmethod
    def setup_context(ctx: FunctionCtx, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.product, _, *tensors = inputs
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)

    @staticmethod
    def backward(ctx: FunctionCtx, *outer: torch.Tensor) -> Gradients:
        tensors = ctx.saved_tensors
        found = applied(HessianProduct, ctx.product, *tensors, *_parts(outer[0], tensors))
        return (None, None, *_parts(found, tensors))

    @staticmethod
    def jvp(ctx: FunctionCtx, *tangents: torch.Tensor | None) -> torch.Tensor:
        tensors = ctx.saved_tensors
        vectors = [
            torch.zeros_like(t) if v is None else v
            for v, t in zip(tangents[2:], tensors, strict=True)
        ]
        found: torch.Tensor = applied(HessianProduct, ctx.product, *tensors, *vectors)
        return found

    @staticmethod
    def vmap(info: Any, in_dims: Sequence[int | None], *given: Any) -> tuple[Any, Any]:
        return row_by_row(Gradient, info, in_dims, *given)


class HessianProduct(torch.autograd.Function):
    """The Hessian times vectors; the tensors come first, then as many vectors."""

    @staticmethod
    def forward(product: Product | None, *tensors: torch.Tensor) -> torch.Tensor:
        if product is None:
            raise DerivativeError(
                "the batch forms and nll_loss have no second derivatives. Use the profiled "
                "losses, one histogram at a time."
            )
        half = len(tensors) // 2
        return product(tensors[:half], tensors[half:])

    @staticmethod
    def setup_context(ctx: FunctionCtx, inputs: tuple[Any, ...], output: Any) -> None:
        pass  # no derivatives

    @staticmethod
    def backward(ctx: FunctionCtx, *outer: torch.Tensor) -> Gradients:
        raise DerivativeError("the losses have first and second derivatives only.")

    @staticmethod
    def jvp(ctx: FunctionCtx, *tangents: torch.Tensor | None) -> torch.Tensor:
        raise DerivativeError("the losses have first and second derivatives only.")

    @staticmethod
    def vmap(info: Any, in_dims: Sequence[int | None], *given: Any) -> tuple[Any, Any]:
        return row_by_row(HessianProduct, info, in_dims, *given)


def _parts(joined: torch.Tensor, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Splits one tensor into the shapes and dtypes of others."""
    rows = joined.ndim - 1
    parts = joined.split([tensor.shape[rows:].numel() for tensor in tensors], dim=-1)
    return [p.reshape(t.shape).to(t.dtype) for p, t in zip(parts, tensors, strict=True)]


def _joined(
    parts: Sequence[torch.Tensor | None], tensors: Sequence[torch.Tensor], like: torch.Tensor
) -> torch.Tensor:
    """The inverse of `_parts`, with zeros where a part is None."""
    given = [torch.zeros_like(t) if p is None else p for p, t in zip(parts, tensors, strict=True)]
    return torch.cat([p.reshape(*like.shape[:-1], -1).to(like.dtype) for p in given], dim=-1)


def number(
    compute: Compute,
    product: Product | None,
    tensors: Sequence[torch.Tensor],
) -> torch.Tensor:
    """The value, with derivatives with respect to all tensors."""
    value: torch.Tensor
    value, _ = applied(Number, compute, product, *tensors)
    return value
