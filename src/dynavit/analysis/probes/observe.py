"""Run a model once and report each norm and attention call.

Hooks tell which module is at work, and a `TorchFunctionMode` sees what attentions compute. No `forward` is replaced, no weight
or attribute changed; after the pass, also a failed one, the model is as it was.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ...convert.sites import heads_of
from .calls import AttentionCall, NormCall
from .course import Course, ModuleCall, UnknownPlace
from .sites import NormSite, attentions, bare, norm_sites, unwrapped
from .weights import SeeWeights

NO_SOFTMAX = "it made no softmax over its tokens that could be read"


def observe(
    model: nn.Module,
    images: Tensor,
    *,
    on_norm: Callable[[NormCall], None] | None = None,
    on_attention: Callable[[AttentionCall], None] | None = None,
    on_left_out: Callable[[str, str], None] | None = None,
) -> Any:
    """The output of the model for images (b, c, height, width), in evaluation mode without gradients.

    `on_norm` is called for each call of a norm in a block, `on_attention` for each softmax of an attention, in the order of the
    pass. Nothing is kept: a callback stores what it wants. Of a wrapped model the inside runs, uncompiled, in this process
    alone.

    A norm or attention whose tokens cannot be placed on the image is an error; with `on_left_out`, which is called with its
    path and the reason, only that one is left out. It is also called for attentions that made no weights between tokens.

    Tokens are taken to lie row-major behind their prefix tokens (Hiera's do not). Left out are attention without a softmax over
    keys, attention over channels, and pooled queries, unless the attention has a `stride`. Changes of weights after the softmax
    (ConViT's gates, talking heads) are not seen. Layers of torch itself (nn.MultiheadAttention) have a fast path
    that they do not take under observation: their last bits may differ.
    """
    if images.dim() != 4 or not len(images):
        raise ValueError(f"observe: takes images (batch, channels, height, width), at least one; got {tuple(images.shape)}")
    model = unwrapped(model)
    sites = {site.norm: site for site in norm_sites(model)} if on_norm is not None else {}
    watched = set(attentions(model).values()) if on_attention is not None else set()
    if on_norm is not None and not sites:
        raise ValueError(f"observe: the model has no norm in a block beside an attention. {_classes(model)}")
    if on_attention is not None and not watched:
        raise ValueError(f"observe: the model has no attention. {_classes(model)}")
    course, seen = Course(images), set[nn.Module]()
    problems: dict[str, str] = {}

    def entered(path: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            course.enter(ModuleCall(path, module, (*args, *kwargs.values())))

        return hook

    def left(module: nn.Module, args: Any, output: Any) -> None:
        if on_norm is not None and module in sites:
            with leaving_out(sites[module].path):
                call = _norm_call(course, sites[module], output)
                if call is not None:
                    on_norm(call)
        course.leave(output)

    def attend(weights: Tensor) -> None:
        call = next((call for call in reversed(course.running) if call.module in watched), None)
        if call is None or on_attention is None:
            return
        with leaving_out(call.path):
            found = _attention_call(course, call, weights)
            if found is not None:
                seen.add(call.module)
                on_attention(found)

    @contextmanager
    def leaving_out(path: str) -> Iterator[None]:
        try:
            yield
        except UnknownPlace as error:
            if on_left_out is None:
                raise
            problems[path] = str(error)

    with ExitStack() as stack:
        stack.enter_context(_left_as_it_was(model, images))
        for path, module in model.named_modules():
            # The last before `forward` and the first after it: hooks of others around it (swapped norms) stay outside.
            stack.callback(module.register_forward_pre_hook(entered(bare(path)), with_kwargs=True).remove)
            stack.callback(module.register_forward_hook(left, prepend=True).remove)
        if on_attention is not None:
            stack.enter_context(SeeWeights(attend))
        output = model(images)
    if on_attention is not None and not seen:
        why = next(iter(problems.values()), _classes(model))
        raise ValueError(f"observe: no attention of the model made a softmax over tokens. {why}")
    if on_left_out is not None:
        silent = {bare(path): NO_SOFTMAX for path, module in attentions(model).items() if module in watched - seen}
        for path, why in {**silent, **problems}.items():
            on_left_out(path, why)
    return output


@contextmanager
def _left_as_it_was(model: nn.Module, images: Tensor) -> Iterator[None]:
    """Evaluation without gradients and compilation; modes and random numbers are restored afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    with torch.no_grad(), torch.random.fork_rng([images.device] if images.is_cuda else []), ExitStack() as stack:
        if "torch._dynamo" in sys.modules:  # else nothing is compiled, and there is no need to import it
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        if not any(training for _, training in modes):
            yield
            return
        model.eval()
        try:
            yield
        finally:
            model.train(modes[0][1])  # some models clear in `train` what they keep for evaluation
            for module, training in modes:
                module.training = training


def _norm_call(course: Course, site: NormSite, after: Tensor) -> NormCall | None:
    before = course.running[-1].tokens
    images = len(course.images)
    if before is None or len(before) != images:
        got = "no tokens" if before is None else f"tokens of shape {tuple(before.shape)}"
        raise UnknownPlace(f"{site.path}: got {got} in a pass of {images} images; tokens are (images, tokens, channels)")
    if before.dim() == 4:
        if site.channels_first:
            before, after = before.permute(0, 2, 3, 1), after.permute(0, 2, 3, 1)
        grid = (before.shape[1], before.shape[2])
        return NormCall(site.path, site.norm, site.heads, site.site, before.flatten(1, 2), after.flatten(1, 2), grid, 0)
    located = course.grid_of(site.path, before.shape[1], before.shape[2])
    return located and NormCall(site.path, site.norm, site.heads, site.site, before, after, *located)


def _attention_call(course: Course, call: ModuleCall, weights: Tensor) -> AttentionCall | None:
    """A softmax (b * w, h, q, k) or (b * w * h, q, k) with the places of its tokens; windows of an image follow each other."""
    images, heads = len(course.images), heads_of(call.module)
    assert heads is not None
    if weights.dim() == 3 and len(weights) % heads == 0:
        weights = weights.unflatten(0, (-1, heads))
    if weights.dim() != 4 or weights.shape[1] != heads or len(weights) % images:
        return None
    weights = weights.unflatten(0, (images, -1))
    places = course.places(call, weights.shape[1], *weights.shape[-2:])
    if places is None:
        return None
    queries, keys = places.queries.to(weights.device), places.keys.to(weights.device)
    return AttentionCall(call.path, weights, queries, keys, places.grid)


def _classes(model: nn.Module) -> str:
    return f"Its modules are: {', '.join(sorted({type(module).__name__ for module in model.modules()}))}"
