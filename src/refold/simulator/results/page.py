"""A self-contained HTML page around charts and tables."""

from __future__ import annotations

from html import escape

STYLE = (
    "body { margin: 24px auto; max-width: 1000px; font: 14px system-ui, sans-serif; color-scheme: light dark; }"
    "svg { max-width: 100%; height: auto; } table { border-collapse: collapse; margin: 8px 28px 32px; }"
    "td, th { padding: 3px 16px 3px 0; text-align: right; } td:first-child, td:last-child { text-align: left; }"
)


def html_page(title: str, content: str) -> str:
    """Return a page; `content` is HTML."""
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{STYLE}</style></head>\n<body>{content}</body></html>\n"
    )
