#!/usr/bin/python3
"""Makes tests/unit/jinja-cases.jsonl: templates, variables, and what Jinja (python3-jinja2, set up as Hugging Face does) makes of them.

    tests/unit/jinja_cases.py > tests/unit/jinja-cases.jsonl
"""
import json

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


ENV = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
ENV.filters["tojson"] = tojson
ENV.globals["raise_exception"] = raise_exception

CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi \u4f60\u597d"},
    {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHello!", "tool_calls": [
        {"type": "function", "function": {"name": "sum", "arguments": {"a": 1, "b": [2.5, None, True]}}}]},
    {"role": "tool", "content": "3", "name": "sum"},
]
V = {"messages": CHAT, "n": 3, "f": 2.5, "s": "Hello, World", "w": "  a b \n", "l": [3, 1, 2], "d": {"b": 1, "a": {"x": "y"}, "items": 7},
     "t": True, "z": None, "e": "", "words": ["pear", "Apple", "fig"], "u": "h\u00e9llo \U0001f600 stra\u00dfe",
     "rows": [{"k": "a", "v": 1, "on": True}, {"k": "b", "v": 2}, {"k": "a", "v": 3, "on": False}]}

TEXTS = [
    # white space
    "a\n", "a\n\n", "  {% if t %}\n  x\n  {% endif %}\ny", "a {%- if t -%}  b  {%- endif -%} c", "a\n  {{ n }}  \nb", "a {{- n -}} b",
    "{# c #}\nx", "  {# c #}  \nx", "x{#- c -#}  y", "  {%+ if t %}x{% endif +%}\ny", "{% if t %}\n\nx{% endif %}", "\t{% set a = 1 %}\n{{ a }}",
    "{% raw %}{{ x }} {% if %}{% endraw %}\nz", "a\r\nb\rc", "x {% raw -%}  q {%- endraw %} y", "{{ '}}' }}{{ {'a': {'b': 1}}['a']['b'] }}", "{{+n}}",
    "{% if t -%}\n   a\n{%- else -%} b {%- endif %} c", "a{% if t %} b {% endif %} c\n {% if t %}\n d{% endif %}", "{{ n }}\n", "{{ n }}\n\n",
    "{%- if t %}\n {{- s }}\n{%- endif %}", "   \n   {% if t %}x{% endif %}", "a {#- b\n c -#}\n d",
    # literals and operators
    "{{ 1 + 2 * 3 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 2 ** 10 }} {{ 2 ** -1 }} {{ 4 / 2 }}",
    "{{ 1.5 }} {{ 1e3 }} {{ 1e20 }} {{ 1e-7 }} {{ 0.1 + 0.2 }} {{ 100000.0 * 10 }} {{ 1_000 }} {{ 123456789.0 * 1e9 }} {{ 2.5 // 1 }} {{ -2.5 % 2 }}",
    "{{ 'a' 'b' }} {{ 'a' ~ 1 ~ none ~ true ~ 2.0 }} {{ 'x' * 3 }} {{ [1] * 2 }} {{ [1, 2] + [3] }}",
    "{{ '\\n\\t\\\\ \\x41 \\u4f60 \\' \\\" \\q' }}|{{ \"it's\" }}", "{{ true and false or 1 }} {{ not true }} {{ none }} {{ True }} {{ '' or 'x' }} {{ 0 and 1 }}",
    "{{ 1 < 2 < 3 }} {{ 1 < 2 > 3 }} {{ 'a' < 'b' }} {{ 1 == 1.0 }} {{ 1 == true }} {{ 'a' == 1 }} {{ [1] == [1] }} {{ [1] == (1,) }} {{ none == none }}",
    "{{ 'ell' in s }} {{ 'x' not in s }} {{ 1 in l }} {{ 'a' in d }} {{ 'zz' in d }} {{ 'x' in nope }} {{ not 'a' in d }}", "{{ -n }} {{ +n }} {{ -f }} {{ - -n }}",
    "{{ 'y' if t else 'n' }} {{ 'y' if z }}| {{ 'a' if z else 'b' if z else 'c' }}", "{{ (1, 2) }} {{ () }} {{ (1,) }} {{ 1, 2 }} {{ [] }} {{ {} }}",
    "{{ {'a': 1, 'b': [none, true, 1.0, \"it's\", 'q\"', 'n\\n']} }}", "{{ l[0] }} {{ l[-1] }} {{ l[5] }}| {{ s[1] }} {{ u[1] }} {{ u[6] }} {{ l.0 }}",
    "{{ s[:5] }} {{ s[7:] }} {{ s[-5:-1] }} {{ s[::-1] }} {{ s[::2] }} {{ l[1:] }} {{ l[:-1] }} {{ l[::-1] }} {{ u[1:8] }} {{ s[5:2] }}| {{ l[10:] }} {{ l[-2:] }} "
    "{{ l[2:0:-1] }} {{ s[:-20:-3] }} {{ (1, 2, 3)[1:] }}", "{{ s | upper ~ 'x' }} {{ -5 | abs }} {{ 'a' + 'b' | upper }} {{ n + 1 | string | length }}",
    "{{ d.a.x }} {{ d['a']['x'] }} {{ d.b }} {{ d['items'] }} {{ d.nope }}| {{ z.nope }}| {{ s.nope }}|", "{{ 10 - 2 - 3 }} {{ 2 * 3 % 4 }} {{ 2 ** 3 ** 2 }} {{ -2 ** 2 }}",
    "{{ not n == 3 }} {{ n is not none and n > 2 }} {{ 5 if n == 3 and not z else 6 }}", "{{ 1 if n is defined else 2 }} {{ (n is odd) == true }} {{ n is divisibleby 3 }}",
    "{{ 'a' ~ 'b' + 'c' }} {{ 1 ~ 2 * 3 }}",
    # set, namespace, scopes
    "{% set a = 1 %}{% for i in l %}{% set a = i %}{{ a }}{% endfor %}{{ a }}", "{% set ns = namespace(a=1, b='x') %}{% for i in l %}{% set ns.a = ns.a + i %}{% endfor %}{{ ns.a }}{{ ns.b }}{{ ns.c }}|",
    "{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set c %}x{{ a }}y{% endset %}{{ c }}", "{% set c | upper | replace('X', 'z') %}x{{ n }}y{% endset %}{{ c }}",
    "{% if t %}{% set q = 5 %}{% endif %}{{ q }}", "{% if z %}{% set q = 5 %}{% endif %}{{ q is defined }}", "{% set ns = namespace(d) %}{{ ns.b }}", "{% with a = 1, b = n %}{{ a }}{{ b }}{% endwith %}{{ a is defined }}",
    "{% for i in l %}{% for i in 'ab' %}{{ i }}{% endfor %}{{ i }}{% endfor %}", "{% set x = 1 %}{% for i in [1, 2] %}{{ x }}{% set x = x + i %}{{ x }};{% endfor %}{{ x }}",
    # for
    "{% for i in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }};{% endfor %}",
    "{% for i in [] %}x{% else %}none{% endfor %}", "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}", "{% for k in d %}{{ k }},{% endfor %}{% for c in u %}{{ c }}.{% endfor %}",
    "{% for i in l if i > 1 %}{{ i }}/{{ loop.length }} {% else %}x{% endfor %}", "{% for i in range(3) %}{{ i }}{% endfor %}{{ range(2, 8, 3) | list }}{{ range(3, 0, -1) | list }}",
    "{% for i in range(9) %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 5 %}{% break %}{% endif %}{{ i }}{% endfor %}.", "{% for i in nope %}x{% else %}y{% endfor %}",
    "{% for i in l %}{{ loop.previtem }},{{ loop.nextitem }};{% endfor %}", "{% for i in l %}{{ loop.cycle('a', 'b') }}{% endfor %}", "{% for r in rows %}{% if loop.changed(r.k) %}{{ r.k }}{% endif %}{{ r.v }}{% endfor %}",
    "{% for a in [1,2] %}{% for b in [3,4] %}{{ loop.index }}{{ loop.depth }}{% endfor %}{{ loop.index }}{% endfor %}", "{% for a in [[1,2],[3,4]] %}{% set x, y = a %}{{ x * y }} {% endfor %}",
    "{% for (a, b) in [[1,2],[3,4]] %}{{ a + b }} {% endfor %}", "{% for m in messages[1:] %}{{ m.role }}{% if not loop.last %}, {% endif %}{% endfor %}", "{% for x in [1,2,3] if x is odd and x > 1 %}{{ x }}{% endfor %}",
    "{% for i in range(3) %}{% for j in range(3) %}{% if j == 1 %}{% break %}{% endif %}{{ i }}{{ j }} {% endfor %}{% endfor %}",
    # macros, filter blocks
    "{% macro m(a, b='x', c=none) %}[{{ a }}{{ b }}{{ c }}]{% endmacro %}{{ m(1) }}{{ m(1, 2) }}{{ m(a=3, c=4) }}{{ m() }}", "{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(4) }}",
    "{% set g = 'G' %}{% macro m() %}{{ g }}{{ s }}{% endmacro %}{% for i in [1] %}{% set g = 'L' %}{{ m() }}{% endfor %}", "{% filter upper %}abc{{ s }}{% endfilter %}", "{{ m is defined }}{% macro m() %}{% endmacro %}{{ m is callable }}",
    "{%- macro render(msg) -%}{%- set c = msg['content'] -%}{%- if c is string -%}{{ c }}{%- endif -%}{%- endmacro -%}{% for m in messages %}{{ render(m) }};{% endfor %}",
    # filters
    "{{ w | trim }}|{{ 'xxaxx' | trim('x') }}|{{ s | length }} {{ l | length }} {{ d | count }} {{ u | length }}", "{{ nope | default('d') }} {{ e | default('d') }}| {{ e | default('d', true) }} {{ z | d('q') }} {{ z | d('q', boolean=true) }}",
    "{{ l | join(', ') }} {{ words | join }} {{ rows | join('-', attribute='k') }} {{ [1, none, 'x'] | join('/') }}", "{{ s | upper }} {{ s | lower }} {{ u | upper }} {{ 'hello wORLD foo' | title }} {{ 'hELLO' | capitalize }}",
    "{{ l | first }} {{ l | last }} {{ [] | first }}| {{ s | first }} {{ l | list }} {{ 'abc' | list }} {{ d | list }} {{ d | items | list }}", "{{ l | sort }} {{ l | sort(reverse=true) }} {{ words | sort }} {{ words | sort(case_sensitive=true) }} {{ rows | sort(attribute='v', reverse=true) | map(attribute='v') | list }}",
    "{{ rows | selectattr('on') | list | length }} {{ rows | selectattr('k', 'equalto', 'a') | map(attribute='v') | list }} {{ rows | rejectattr('k', '==', 'a') | list }} {{ rows | selectattr('on', 'defined') | list | length }}",
    "{{ l | select('odd') | list }} {{ l | reject('gt', 1) | list }} {{ [0, 1, '', 'a'] | select | list }} {{ words | map('upper') | list }} {{ words | map('replace', 'p', 'b') | list }} {{ rows | map(attribute='on', default='?') | list }}",
    "{{ '3' | int + 1 }} {{ 'x' | int }} {{ 'x' | int(7) }} {{ 3.9 | int }} {{ '2.5' | float }} {{ 5 | float }} {{ 5 | string + 'a' }} {{ ' 12 ' | int }} {{ '3.7' | int }}", "{{ s | replace('l', 'L') }} {{ s | replace('l', 'L', 1) }} {{ s | replace('', '-') }} {{ 'aaa' | replace('aa', 'b') }}",
    "{{ l | reverse | list }} {{ 'abc' | reverse }} {{ l | sum }} {{ l | min }} {{ l | max }} {{ rows | sum(attribute='v') }} {{ [1, 1, 2] | unique | list }} {{ d | dictsort }}", "{{ 'a\nb\n\nc' | indent }}|{{ 'a\nb' | indent(2, true) }}|{{ 'a\n\nb' | indent(1, blank=true) }}",
    "{{ 3.14159 | round(2) }} {{ 2.5 | round }} {{ 7 | round }} {{ 2.1 | round(0, 'ceil') }} {{ 2.9 | round(method='floor') }}", "{{ s | safe }} {{ n | abs }} {{ -2.5 | abs }}",
    "{{ d | tojson }} {{ messages | tojson }} {{ u | tojson }} {{ u | tojson(ensure_ascii=true) }} {{ 'a\"\\\\/\n\t\x01<>&\\'\x7f' | tojson }}", "{{ d | tojson(indent=2) }} {{ [] | tojson(indent=2) }} {{ [{}] | tojson(indent=4) }} {{ d | tojson(separators=(',', ':')) }} {{ d | tojson(sort_keys=true) }} {{ [1.0, 1e20, 0.5, -3] | tojson }} {{ {1: 2, none: 3, true: 4} | tojson }}",
    # tests
    "{{ n is defined }} {{ nope is defined }} {{ nope is undefined }} {{ z is none }} {{ z is not none }} {{ n is none }}", "{{ s is string }} {{ n is string }} {{ n is number }} {{ f is float }} {{ n is integer }} {{ t is boolean }} {{ t is number }} {{ t is true }} {{ t is false }}",
    "{{ d is mapping }} {{ l is mapping }} {{ l is iterable }} {{ n is iterable }} {{ s is sequence }} {{ d is sequence }} {{ n is sequence }} {{ s is iterable }} {{ range is callable }}", "{{ 3 is odd }} {{ 3 is even }} {{ 'abc' is lower }} {{ 'ABC' is upper }} {{ 6 is divisibleby(3) }} {{ 3 is eq 3 }} {{ 3 is ne(3) }} {{ 2 is lt 3 }} {{ 1 is in [1, 2] }} {{ 3 is sameas 3 }} {{ 2 is gt(3) }} {{ 'a' is in 'abc' }}",
    "{{ messages[2].tool_calls is defined and messages[2].tool_calls is not none }} {{ messages[0].tool_calls is defined }}",
    # methods of strings and dicts
    "{{ s.split(', ') }} {{ w.split() }} {{ 'a,b,c'.split(',', 1) }} {{ 'a b c'.split(maxsplit=1) }} {{ 'a,b,c'.rsplit(',', 1) }} {{ '' .split(',') }} {{ ''.split() }} {{ messages[2].content.split('</think>')[-1].lstrip('\n') }}",
    "{{ w.strip() }}|{{ w.lstrip() }}|{{ w.rstrip() }}|{{ 'xyax'.strip('xy') }}|{{ s.startswith('He') }} {{ s.endswith(('x', 'ld')) }} {{ s.replace('o', '0') }} {{ s.replace('l', '', 2) }}", "{{ s.upper() }} {{ s.lower() }} {{ 'a-b c1d'.title() }} {{ 'aBC'.capitalize() }} {{ ','.join(words) }} {{ s.find('o') }} {{ s.find('q') }} {{ s.rfind('o') }} {{ s.count('l') }} {{ u.find('s') }} {{ s.index('W') }}",
    "{{ '12'.isdigit() }} {{ 'a1'.isdigit() }} {{ ' \t'.isspace() }} {{ 'ab'.isalpha() }} {{ ''.isdigit() }} {{ 'a\nb\r\nc'.splitlines() }} {{ 'a\nb\n'.splitlines(true) }} {{ 'prefix-x'.removeprefix('prefix-') }} {{ 'x.py'.removesuffix('.py') }} {{ 'a=b=c'.partition('=') }} {{ 'a=b=c'.rpartition('=') }} {{ 'abc'.partition('x') }}",
    "{{ d.get('b') }} {{ d.get('q') }} {{ d.get('q', 5) }} {{ d.keys() | list }} {{ d.values() | list }} {{ d.items() | list | length }}", "{{ dict(a=1, b='x') }} {{ dict(d, c=2) }} {{ l.index(1) }} {{ l.count(3) }}",
    "{{ u }} {{ [u] }} {{ '\u00a0\u200b\u3000x' | trim }}|{{ ['\u00a0\u200b\x00'] }}", "{{ 'Aa' < 'aA' }} {{ [1, 2] < [1, 3] }} {{ 1.5 > 1 }} {{ true > false }}", "{{ nope }}|{{ nope | length }}|{{ nope | list }}|{{ nope == nope2 }}|{{ nope ~ 'x' }}",
    # whole templates of the kind that models carry
    "{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}{% set ns = namespace(sys='', first=true) %}{%- for m in messages %}{%- if m['role'] == 'system' %}{% set ns.sys = ns.sys + m['content'] %}"
    "{%- endif %}{%- endfor %}<b>{{ ns.sys }}{%- for m in messages %}{%- if m['role'] == 'user' %}{{ '<U>' + m['content'] }}{%- endif %}{%- if m['role'] == 'assistant' and 'tool_calls' in m %}{%- for c in m['tool_calls'] %}"
    "{%- if loop.first %}{{ '<A><c>' }}{%- endif %}{{ c['type'] + '<s>' + c['function']['name'] + '\\n' + c['function']['arguments'] | tojson + '\\n' }}{%- endfor %}{{ '</c>' }}{%- endif %}{%- if m['role'] == 'tool' %}{{ '<o>' + m['content'] }}{%- endif %}{%- endfor %}"
    "{% if add_generation_prompt %}{{ '<A>' }}{% endif %}",
    "{%- for message in messages -%}\n  {%- if loop.first and messages[0]['role'] != 'system' -%}\n    <S>default<E>\n  {%- endif -%}\n  {%- if message['role'] == 'system' -%}\n    <S>\n  {%- elif message['role'] == 'user' -%}\n    <U>\n  {%- else -%}\n    <A>\n  {%- endif -%}\n"
    "  {{ message['content'] + '<E>' }}\n{%- endfor -%}\n{%- if add_generation_prompt -%}\n  <A>\n{%- endif -%}\n",
    "{%- set last = namespace(i=-1) %}{%- for m in messages[::-1] %}{%- set i = (messages|length - 1) - loop.index0 %}{%- if last.i < 0 and m.role == 'user' and not(m.content.startswith('<x>') and m.content.endswith('</x>')) %}{%- set last.i = i %}{%- endif %}{%- endfor %}{{ last.i }}",
    # what fails
    "{{ 'a' + 1 }}", "{{ nope.x }}", "{{ nope + 'a' }}", "{{ 1 / 0 }}", "{{ raise_exception('roles must alternate') }}", "{{ nope() }}", "{{ 3 is zzz }}", "{{ 3 | zzz }}", "{% zzz %}", "{% if t %}", "{{ 1", "{{ }}", "{{ 'a }}", "{# x", "{% for i in 3 %}{% endfor %}",
    "{% endif %}", "{{ l < 1 }}", "{{ (1 }}", "{{ 1) }}", "{% set 1 = 2 %}", "{% for i in l %}", "{{ range(1000000) }}", "{% set s.x = 1 %}", "{{ l.append(4) }}", "{{ [1][none] }}|", "{% break %}", "{{ 'x'.split('') }}", "{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}",
    "{% raw %}x", "{{ {}.x.y }}", "{{ 'a' in 3 }}", "{{ 1 in 'a' }}", "{{ d | join(3, 4, 5) }}", "{{ messages | tojson(zzz=1) }}", "{{ nope | tojson }}", "{{ none + 1 }}", "{{ s[1:2:0] }}", "{% set a, b = [1] %}", "{{ 1 2 }}", "{{ . }}", "{{ 'a' is odd }}", "{{ [] is even }}", "{{ 4 is divisibleby 'a' }}", "{{ 4 is divisibleby 0 }}", "{{ a..b }}",
]


def main():
    for text in TEXTS:
        case = {"template": text}
        try:
            case["text"] = ENV.from_string(text).render(**json.loads(json.dumps(V)))
        except Exception as e:  # whatever it is: the rendering fails
            case["error"] = type(e).__name__
        print(json.dumps(case, ensure_ascii=True))


print(json.dumps({"vars": V}))
main()
