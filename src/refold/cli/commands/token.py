"""`refold token`: who may ask the daemon, and for what."""

from __future__ import annotations

from typing import Annotated, cast

import typer

from refold.cli import daemon, tenants_beginning, tokens_beginning
from refold.cli.views import AsJson, Column, Table, clock, print_json, print_tables, say

ROLES = ("owner", "member", "reader")

app = typer.Typer(help="Tokens: who may ask the daemon, and for what.", no_args_is_help=True)


def _roles_beginning(incomplete: str) -> list[str]:
    return [role for role in ROLES if role.startswith(incomplete)]


TokenName = Annotated[
    str, typer.Argument(metavar="NAME", help="See 'refold token list'.", autocompletion=tokens_beginning)
]

TenantOfToken = Annotated[
    str,
    typer.Option("--tenant", metavar="NAME", help="Whose jobs it is about.", autocompletion=tenants_beginning),
]


@app.command("list")
def list_tokens(as_json: AsJson = False) -> None:
    """List the tokens. What they are is told to nobody, since nobody knows."""
    found = daemon().tokens()
    if as_json:
        print_json(found)
        return
    columns = {
        "name": Column("token", whole=True),
        "role": Column("role", whole=True),
        "tenant": Column("tenant", whole=True),
        "user": Column("user", whole=True),
        "created": Column("made", clock, whole=True),
    }
    rows = [{key: getattr(token, key) for key in columns} for token in found]
    print_tables(Table("", columns, rows))


@app.command()
def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What it is called, such as whose it is.")],
    role: Annotated[
        str,
        typer.Option(
            "--role",
            help="reader: may look; member: and submit for its tenant; owner: everything.",
            autocompletion=_roles_beginning,
        ),
    ] = "member",
    tenant: TenantOfToken = "default",
    user: Annotated[str | None, typer.Option("--user", help="Whose jobs they are [its name].")] = None,
    as_json: AsJson = False,
) -> None:
    """Make a token. It is told once; who has it sets REFOLD_TOKEN to it.

    Example: refold token new ann --tenant vision
    """
    from refold.api import Role
    from refold.errors import UnknownName

    if role not in ROLES:
        raise UnknownName("role", role, ROLES)
    client = daemon()
    made = client.new_token(name, cast(Role, role), tenant, name if user is None else user)
    if as_json:
        print_json(made)
        return
    say(f"the token {made.name}, which is told this once:")
    print(made.token)
    say(f"who has it: export REFOLD_ADDRESS={client.address} REFOLD_TOKEN=…", err=True)


@app.command()
def revoke(name: TokenName, as_json: AsJson = False) -> None:
    """Let a token open nothing more.

    Example: refold token revoke ann
    """
    was = daemon().revoke_token(name)
    if as_json:
        print_json(was)
    else:
        say(f"the token {was.name} ({was.role}) opens nothing more")
