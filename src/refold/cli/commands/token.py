"""`refold token`: manage access tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, cast

import typer

from refold.cli import argument, complete_tenants, complete_tokens, make_client, option
from refold.cli.views import AsJson, Column, Table, format_clock, print_json, print_line, print_tables
from refold.errors import UnknownName

if TYPE_CHECKING:
    from refold.client.api import TokenStatus

ROLES = ("owner", "member", "reader")

app = typer.Typer(help="Manage access tokens.", no_args_is_help=True)


def _complete_roles(incomplete: str) -> list[str]:
    return [role for role in ROLES if role.startswith(incomplete)]


TokenName = Annotated[str, argument("NAME", "Token name (see 'refold token list').", complete=complete_tokens)]

TokenTenant = Annotated[str, option("NAME", "Tenant of the token.", "--tenant", complete=complete_tenants)]


@app.command("list")
def list_tokens(as_json: AsJson = False) -> None:
    """List the tokens. Their secrets are not stored and cannot be shown."""
    found = make_client().tokens()
    if as_json:
        print_json(found)
        return
    columns: list[Column[TokenStatus]] = [
        Column("token", lambda token: token.name, whole=True),
        Column("role", lambda token: token.role, whole=True),
        Column("tenant", lambda token: token.tenant, whole=True),
        Column("user", lambda token: token.user, whole=True),
        Column("created", lambda token: format_clock(token.created), whole=True),
    ]
    print_tables(Table("", columns, found))


@app.command()
def new(
    name: Annotated[str, argument("NAME", "Token name, such as the name of its user.")],
    role: Annotated[
        str,
        option(
            "ROLE",
            "reader: read only; member: also submit jobs of its tenant; owner: everything.",
            complete=_complete_roles,
        ),
    ] = "member",
    tenant: TokenTenant = "default",
    user: Annotated[str | None, option("NAME", "Owner of jobs submitted with it (default: the token's name).")] = None,
    as_json: AsJson = False,
) -> None:
    """Create a token and print its secret, which is shown only once. Use it by setting REFOLD_TOKEN.

    Example: refold token new ann --tenant vision
    """
    from refold.client.api import Role

    if role not in ROLES:
        raise UnknownName("role", role, ROLES)
    client = make_client()
    created = client.create_token(name, cast(Role, role), tenant, name if user is None else user)
    if as_json:
        print_json(created)
        return
    print_line(f"token {created.name} (shown only once):")
    print(created.token)
    print_line(f"to use it: export REFOLD_ADDRESS={_network_address(client.address)} REFOLD_TOKEN=…", err=True)


def _network_address(address: str) -> str:
    """Return the address for users of tokens: not that of the Unix socket, which needs none."""
    from refold.client import read_address, state_folder

    if not address.startswith("unix:"):
        return address
    stored = read_address(state_folder())
    return stored.address if stored is not None else "http://HOST:PORT"


@app.command()
def revoke(name: TokenName, as_json: AsJson = False) -> None:
    """Revoke a token.

    Example: refold token revoke ann
    """
    revoked = make_client().revoke_token(name)
    if as_json:
        print_json(revoked)
    else:
        print_line(f"token {revoked.name} ({revoked.role}) revoked")
