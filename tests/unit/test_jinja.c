/* The Jinja interpreter: what Jinja itself makes of many templates (tests/unit/jinja_cases.py), and the limits. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/time.h"
#include "base/utf8.h"
#include "model/jinja.h"
#include "tests/unit/tap.h"

static void check_case(const json_t *c, const json_t *vars, size_t line)
{
	const json_t *t = json_object_get(c, "template"), *want = json_object_get(c, "text");
	struct ds_err err = { 0 };
	struct buf out = { 0 };
	int rc = jinja_render(json_string_value(t), json_string_length(t), vars, &out, &err);
	bool ok = want ? !rc && out.len == json_string_length(want) && !memcmp(out.p ? out.p : "",
		json_string_value(want), out.len) : rc == DS_DATA;

	tap_ok(ok, "case %zu: %.100s", line, json_string_value(t));
	if (!ok)
		tap_diag("got %d '%s' (%s), want '%s'", rc, out.p ? out.p : "", err.text, want ?
			json_string_value(want) : "an error");
	buf_free(&out);
}

static void check_cases(const char *path)
{
	FILE *f = fopen(path, "r");
	char *text = NULL;
	size_t cap = 0, line = 0;
	json_t *vars = NULL;

	if (!f)
		tap_bail("cannot open '%s'", path);
	while (getline(&text, &cap, f) > 0) {
		json_t *c = json_loads(text, JSON_ALLOW_NUL, NULL);
		line++;
		if (json_object_get(c, "vars"))
			vars = json_incref(json_object_get(c, "vars"));
		else
			check_case(c, vars, line);
		json_decref(c);
	}
	tap_ok(line > 130, "%zu cases", line);
	json_decref(vars);
	free(text);
	fclose(f);
}

static char *repeated(const char *head, const char *unit, size_t n, const char *tail)
{
	struct buf b = { 0 };

	buf_str(&b, head);
	while (n--)
		buf_str(&b, unit);
	buf_str(&b, tail);
	return b.p;
}

/* Refused with a message that has `text`, soon, and without a crash. */
static void check_hostile(const char *what, const char *src, const char *text)
{
	json_t *vars = json_object();
	struct ds_err err = { 0 };
	struct buf out = { 0 };
	int64_t start = time_mono_ns();
	int rc = jinja_render(src, strlen(src), vars, &out, &err);

	tap_ok(rc == DS_DATA && strstr(err.text, text), "%s: %.150s", what, err.text);
	tap_ok(time_mono_ns() - start < 20000000000, "%s: in bounded time", what);
	buf_free(&out);
	json_decref(vars);
}

static void check_repeated(const char *what, const char *head, const char *unit, size_t n, const char *tail,
	const char *text)
{
	char *src = repeated(head, unit, n, tail);

	check_hostile(what, src, text);
	free(src);
}

static void check_brackets(const char *open, const char *close)
{
	char *tail = repeated("1", close, 5000, " }}");

	check_repeated(open, "{{ ", open, 5000, tail, "nested");
	free(tail);
}

static void check_limits(void)
{
	check_brackets("(", ")");
	check_brackets("[", "]");
	check_brackets("a[", "]");
	check_brackets("a(", ")");
	check_brackets("{1:", "}");
	check_repeated("not", "{{ ", "not ", 5000, "x }}", "nested");
	check_repeated("signs", "{{ ", "-", 5000, "1 }}", "nested");
	check_repeated("else", "{{ ", "1 if 0 else ", 5000, "1 }}", "nested");
	check_repeated("blocks", "", "{% if 1 %}", 5000, "", "nested");
	check_repeated("a long sum", "{{ 1", "+1", 5000, " }}", "nested");
	check_repeated("many filters", "{{ 'a'", "|trim", 5000, " }}", "nested");
	check_repeated("many attributes", "{{ messages", ".a", 5000, " }}", "nested");
	check_repeated("values that double", "{% set a = [1] %}", "{% set a = [a, a] %}", 60, "{{ a }}", "steps");
	check_repeated("strings that double", "{% set a = 'aaaaaaaa' %}", "{% set a = a + a %}", 60, "{{ a }}", "MiB");
	check_hostile("endless work", "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
		"over");
	check_hostile("endless text", "{% set a = 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa' * 99999 %}{% for b in "
		"range(99999) %}{{ a }}{% endfor %}", "of text");
	check_hostile("a macro without end", "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "nested");
	check_hostile("a number without end", "{{ 9 ** 9 ** 9 }}", "too large");
	check_hostile("a huge literal", "{{ 99999999999999999999 }}", "too large");
	check_hostile("a huge repeat", "{{ 'ab' * 9999999999 }}", "over");
	check_hostile("a line number", "a\nb\n{{ nope.x }}", "line 3");
	check_hostile("the template's own words", "{{ raise_exception('roles must alternate') }}",
		"roles must alternate");
}

int main(void)
{
	check_cases("tests/unit/jinja-cases.jsonl");
	check_limits();
	return tap_done();
}
