"""Models to and from the Hugging Face hub, by its own client."""

import re
import tempfile
from os import PathLike
from pathlib import Path
from typing import Any

from torch import nn

from ..common.network import hub_address, require_network
from .repository import CARD, CONFIG, POLICY, WEIGHTS, save_pretrained

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


def looks_like_hub_id(name: str) -> bool:
    """Whether a text can be the id of a model, owner/name. A path of two parts can too: look for a directory first."""
    return _HUB_ID.fullmatch(name) is not None and not name.startswith(".")


def fetch(repo_id: str) -> Path:
    """Download the files of a model, once; its folder in the hub's cache."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    wanted = [CONFIG, WEIGHTS, POLICY]
    try:
        return Path(snapshot_download(repo_id, allow_patterns=wanted, local_files_only=True))
    except LocalEntryNotFoundError:
        pass
    require_network(hub_address(), f"{repo_id} is no directory here, and as a model of the hub it")
    try:
        return Path(snapshot_download(repo_id, allow_patterns=wanted, endpoint=hub_address()))
    except HfHubHTTPError as error:
        reason = str(error).strip().splitlines()[0]
        raise ValueError(f"{repo_id} is no directory here, and the hub does not give it: {reason}") from error


def push_to_hub(
    source: str | PathLike[str] | nn.Module,
    repo_id: str,
    *,
    private: bool | None = None,
    token: str | None = None,
    message: str = "Model by dynavit",
    **saving: Any,
) -> str:
    """Save a run or a model as `save_pretrained` does and upload it; the address of the repository.

    Args:
        source: the directory of a run, or a model of `create_model`.
        repo_id: owner/name; is made if it does not exist.
        private: whether only you can see a repository that is made.
        token: of the hub; without one that of `hf auth login`.
        message: of the commit.
        saving: options of `save_pretrained`: checkpoint, weights, classes, license.
    """
    if not looks_like_hub_id(repo_id):
        raise ValueError(f"a model on the hub is called owner/name, got {repo_id!r}")
    from huggingface_hub import HfApi

    with tempfile.TemporaryDirectory() as temporary:
        folder = save_pretrained(source, Path(temporary) / "model", **saving)  # what cannot be saved is told before any upload
        require_network(hub_address(), f"a repository for {repo_id}")
        api = HfApi(endpoint=hub_address(), token=token)
        address = api.create_repo(repo_id, private=private, exist_ok=True)
        api.upload_folder(
            repo_id=repo_id, folder_path=folder, commit_message=message, allow_patterns=[CONFIG, WEIGHTS, POLICY, CARD]
        )
    return str(address)
