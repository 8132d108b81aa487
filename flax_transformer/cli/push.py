"""`flax-transformer push RUN_OR_FOLDER OWNER/NAME`: a checkpoint to the hub."""

from typing import Annotated

import tyro

from flax_transformer.cli.read import Folder


def push(
    source: Folder,
    repository: Annotated[str, tyro.conf.Positional],
    /,
    license: str = "",
    language: tuple[str, ...] = (),
    private: bool = False,
    revision: str | None = None,
    dry_run: bool = False,
) -> None:
    """Send a finished run's checkpoint, or a checkpoint's folder, with its model card to the hub.

    The card, README.md, says the task, the results and how the model was trained; what is not known here is said by
    --license and --language. The hub's token is that of `hf auth login`.

    Args:
      source: Run folder or Hugging Face folder.
      repository: OWNER/NAME.
      license: Of the model, as the hub spells it: apache-2.0, mit, cc-by-4.0 and so on.
      language: Of the texts, as ISO codes: en de.
      private: Whether a new repository is private.
      revision: Branch; main by default.
      dry_run: List what would be sent, and send nothing.
    """
    from flax_transformer.task.model_card import license_card
    from flax_transformer.task.push import check_repository, plan_push
    from flax_transformer.task.push import push as send
    from flax_transformer.text_table import align

    check_repository(repository)
    sending = plan_push(source)
    if (license or language) and not dry_run:
        license_card(sending.folder, license=license, languages=language)
        sending = plan_push(source)
    print(align([(name, f"{size:,} bytes") for name, size in sending.files], "lr"))
    total = f"{len(sending.files)} files, {sum(size for _, size in sending.files):,} bytes"
    if dry_run:
        return print(f"{total}, which --no-dry-run would send to {repository}")
    print(f"{total} sent: {send(sending, repository, private=private, revision=revision)}")
