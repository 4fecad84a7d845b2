"""The page of every public name, from its docstring."""

import dynavit

GROUPS = {
    "Norms": ["list_norms", "create_norm", "DynamicTokenNorm", "Norm", "recalibrate"],
    "Models": ["list_models", "create_model", "import_released", "load_released", "parameter_groups"],
    "Swapping norms": ["plan_swap", "swap_norms", "save_swapped", "load_swapped"],
    "Runs": ["TrainConfig", "train_run", "evaluate_run", "probe_run", "evaluate_robust", "analyze_runs", "look_inside", "load"],
    "Shipping": ["fold", "serve", "save_pretrained", "push_to_hub"],
    "Doors": [
        "register_norm", "register_task", "register_data", "register_model", "load_plugin",
        "Task", "ImageTask", "Evaluator", "Metric", "Batch", "DataSet", "MemorySplit",
    ],
}  # fmt: skip


def name_pages() -> dict[str, str]:
    """File name to text. A public name that stands in no group, or in two, is an error."""
    public = set(dynavit.__all__) - {"__version__"}
    grouped = [name for names in GROUPS.values() for name in names]
    if public != set(grouped) or len(grouped) != len(set(grouped)):
        twice = {name for name in grouped if grouped.count(name) > 1}
        raise ValueError(
            f"docsite/reference_names.py: these names stand in no group, in two, or are not public: "
            f"{sorted(public ^ set(grouped) | twice)}"
        )
    return {
        f"reference/{group.lower().replace(' ', '_')}.md": "\n".join([f"# {group}", "", *map(_entry, names)])
        for group, names in GROUPS.items()
    }


def _entry(name: str) -> str:
    """By its home where a module has the same name, which would be shown instead."""
    home = getattr(dynavit, name).__module__
    return f"::: {home}.{name}\n" if home.endswith(f".{name}") else f"::: dynavit.{name}\n"
