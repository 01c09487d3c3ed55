"""The docs page: the OpenAPI document as plain HTML, without scripts and without other servers.

The one thing not to break: everything that is shown is escaped, and the policy allows this page's
own style and nothing else.
"""

from __future__ import annotations

import base64
import hashlib
import json
from html import escape
from typing import Any, Final

_STYLE: Final = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
body { margin: 0 auto; max-width: 60rem; padding: 1rem; }
h2 { border-bottom: 1px solid; margin-top: 3rem; }
summary { cursor: pointer; padding: .35rem 0; }
details details { margin-left: 1rem; }
code, pre { font-family: ui-monospace, monospace; font-size: .9em; }
pre { border: 1px solid; overflow-x: auto; padding: .6rem; }
table { border-collapse: collapse; width: 100%; }
td, th { border-bottom: 1px solid; padding: .3rem .6rem .3rem 0; text-align: left;
  vertical-align: top; }
.method { display: inline-block; font-weight: bold; min-width: 4.5rem; }
nav a { margin-right: 1rem; }
"""
_STYLE_HASH: Final = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
CONTENT_SECURITY_POLICY: Final = (
    f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
_SCHEMAS: Final = "#/components/schemas/"


def render(description: dict[str, Any]) -> str:
    """Make the page of an OpenAPI document."""
    info = description["info"]
    tags = [tag["name"] for tag in description["tags"]]
    links = "".join(f'<a href="#{escape(tag)}">{escape(tag)}</a>' for tag in tags)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(info['title'])}: HTTP API</title><style>{_STYLE}</style></head><body>"
        f"<h1>{escape(info['title'])}: HTTP API</h1><p>{escape(info['description'])}</p>"
        '<p>As a file: <a href="openapi.json">openapi.json</a> (OpenAPI 3.1).</p>'
        f'<nav>{links}<a href="#schemas">schemas</a></nav>'
        f"{''.join(_tag(tag, description) for tag in tags)}"
        f'<h2 id="schemas">Schemas</h2>{_schemas(description)}</body></html>'
    )


def _tag(tag: str, description: dict[str, Any]) -> str:
    operations = [
        _operation(method, path, operation, description)
        for path, methods in description["paths"].items()
        for method, operation in methods.items()
        if tag in operation["tags"]
    ]
    return f'<h2 id="{escape(tag)}">{escape(tag)}</h2>{"".join(operations)}'


def _operation(
    method: str, path: str, operation: dict[str, Any], description: dict[str, Any]
) -> str:
    name = escape(operation["operationId"])
    return (
        f'<details id="{name}"><summary><span class="method">{escape(method.upper())}</span>'
        f"<code>{escape(path)}</code> {escape(operation['summary'])}</summary>"
        f"<p>{escape(operation['description'])}</p>{_parameters(operation['parameters'])}"
        f"{_body(operation, description)}{_responses(operation, description)}</details>"
    )


def _parameters(parameters: list[dict[str, Any]]) -> str:
    if not parameters:
        return ""
    rows = "".join(
        f"<tr><td><code>{escape(item['name'])}</code></td><td>{escape(item['in'])}</td>"
        f"<td><code>{escape(_short(item['schema']))}</code></td>"
        f"<td>{escape(item.get('description', ''))}</td></tr>"
        for item in parameters
    )
    return f"<table><tr><th>parameter</th><th>in</th><th>form</th><th></th></tr>{rows}</table>"


def _short(schema: dict[str, Any]) -> str:
    return json.dumps({name: value for name, value in schema.items() if name != "description"})


def _body(operation: dict[str, Any], description: dict[str, Any]) -> str:
    if "requestBody" not in operation:
        return ""
    content = operation["requestBody"]["content"]
    schema = next(iter(content.values()))["schema"]
    kinds = ", ".join(escape(kind) for kind in content)
    return f"<p>Body ({kinds}): {_link(schema)}</p>{_examples(schema, description)}"


def _responses(operation: dict[str, Any], description: dict[str, Any]) -> str:
    rows = []
    for status, response in operation["responses"].items():
        shown = response
        if "$ref" in response:
            shown = description["components"]["responses"][response["$ref"].rsplit("/", 1)[-1]]
        content: dict[str, dict[str, Any]] = shown.get("content", {})
        link = "".join(_link(form["schema"]) for form in content.values())
        rows.append(
            f"<tr><td>{escape(status)}</td><td>{escape(shown['description'])}</td>"
            f"<td>{link}</td></tr>"
        )
    return f"<table><tr><th>status</th><th></th><th></th></tr>{''.join(rows)}</table>"


def _link(schema: dict[str, Any]) -> str:
    name = escape(str(schema.get("$ref", "")).removeprefix(_SCHEMAS))
    return f'<a href="#schema-{name}"><code>{name}</code></a>'


def _examples(schema: dict[str, Any], description: dict[str, Any]) -> str:
    schemas: dict[str, dict[str, Any]] = description["components"]["schemas"]
    named = schemas.get(str(schema.get("$ref", "")).removeprefix(_SCHEMAS), {})
    return "".join(
        f"<pre>{escape(json.dumps(example, indent=2, ensure_ascii=False))}</pre>"
        for example in named.get("examples", ())
    )


def _schemas(description: dict[str, Any]) -> str:
    return "".join(
        f'<details id="schema-{escape(name)}"><summary><code>{escape(name)}</code></summary>'
        f"<pre>{escape(json.dumps(schema, indent=2, ensure_ascii=False))}</pre></details>"
        for name, schema in description["components"]["schemas"].items()
    )
