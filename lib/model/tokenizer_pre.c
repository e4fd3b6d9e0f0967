/* The pre-tokenizer: splits by regular expressions in turn, each piece kept, then bytes. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "model/tokenizer_impl.h"

struct split { pcre2_code *code; pcre2_match_data *md; };

struct pre {
	struct split v[TOKENIZER_MAX_SPLITS];
	size_t n;
	pcre2_match_context *mc;
	pcre2_jit_stack *stack;
	bool bytes; /* ByteLevel was the last step */
};

/* How many steps one match may take: a pattern that needs more is hostile. */
enum { MATCH_LIMIT = 10 * 1000 * 1000, MATCH_HEAP_KIB = 64 * 1024 };

void pre_free(struct pre *pre)
{
	if (!pre)
		return;
	for (size_t i = 0; i < pre->n; i++) {
		pcre2_code_free(pre->v[i].code);
		pcre2_match_data_free(pre->v[i].md);
	}
	pcre2_match_context_free(pre->mc);
	pcre2_jit_stack_free(pre->stack);
	free(pre);
}

static int add_split(struct pre *pre, const char *pattern, size_t n, const char *name, struct ds_err *err)
{
	struct buf b = { 0 };
	struct split *s = &pre->v[pre->n];
	PCRE2_SIZE at;
	PCRE2_UCHAR why[128];
	int code, rc;

	if (pre->n == TOKENIZER_MAX_SPLITS)
		return err_set(err, DS_DATA, "'%s': over %d steps of the pre-tokenizer", name, TOKENIZER_MAX_SPLITS);
	rc = regex_translate(pattern, n, name, &b, err);
	if (rc)
		goto out;
	/* MULTILINE: '$' is the end of a line there. */
	s->code = pcre2_compile((PCRE2_SPTR)(b.p ? b.p : ""), b.len,
		PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &code, &at, NULL);
	if (!s->code) {
		pcre2_get_error_message(code, why, sizeof(why));
		rc = err_set(err, DS_DATA, "'%s': bad pattern '%.*s': %s", name, (int)(n < 200 ? n : 200), pattern,
			(const char *)why);
		goto out;
	}
	pre->n++;
	pcre2_jit_compile(s->code, PCRE2_JIT_COMPLETE); /* without JIT it is slower, the result is the same */
	s->md = pcre2_match_data_create(1, NULL);
	if (!s->md)
		rc = err_nomem(err, 64, "a pattern");
out:
	buf_free(&b);
	return rc;
}

static int known_keys(const json_t *o, const char *const *keys, const char *name, const char *what, struct ds_err *err)
{
	const char *key;
	json_t *v;

	json_object_foreach((json_t *)(uintptr_t)o, key, v) {
		size_t i = 0;
		while (keys[i] && strcmp(keys[i], key))
			i++;
		if (!keys[i])
			return err_set(err, DS_DATA, "'%s': unknown field '%s' of %s", name, key, what);
	}
	return 0;
}

static const char *type_of(const json_t *o)
{
	const char *s = json_string_value(json_object_get(o, "type"));

	return s ? s : "(no type)";
}

static int parse_split(struct pre *pre, const json_t *o, const char *name, struct ds_err *err)
{
	static const char *const keys[] = { "type", "pattern", "behavior", "invert", NULL };
	static const char *const pattern_keys[] = { "Regex", NULL };
	const json_t *pattern = json_object_get(o, "pattern"), *regex = json_object_get(pattern, "Regex");
	const char *behavior = json_string_value(json_object_get(o, "behavior"));

	if (known_keys(o, keys, name, "the pre-tokenizer 'Split'", err) || known_keys(pattern, pattern_keys, name,
		"a pattern", err))
		return err->code;
	if (!json_is_string(regex))
		return err_set(err, DS_DATA, "'%s': pre-tokenizer 'Split' without a pattern 'Regex'", name);
	if (!behavior || strcmp(behavior, "Isolated"))
		return err_set(err, DS_DATA, "'%s': pre-tokenizer 'Split' with behavior '%s': only 'Isolated' is known",
			name,
			behavior ? behavior : "(none)");
	if (!json_is_false(json_object_get(o, "invert")))
		return err_set(err, DS_DATA, "'%s': pre-tokenizer 'Split' where 'invert' is not false", name);
	return add_split(pre, json_string_value(regex), json_string_length(regex), name, err);
}

static int parse_bytes(struct pre *pre, const json_t *o, const char *name, struct ds_err *err)
{
	static const char *const keys[] = { "type", "add_prefix_space", "trim_offsets", "use_regex", NULL };

	if (known_keys(o, keys, name, "the pre-tokenizer 'ByteLevel'", err))
		return err->code;
	if (!json_is_false(json_object_get(o, "add_prefix_space")))
		return err_set(err, DS_DATA, "'%s': pre-tokenizer 'ByteLevel' where 'add_prefix_space' is not false",
			name);
	if (!json_is_false(json_object_get(o, "use_regex")))
		return err_set(err, DS_DATA, "'%s': pre-tokenizer 'ByteLevel' where 'use_regex' is not false", name);
	pre->bytes = true;
	return 0;
}

static int parse_digits(struct pre *pre, const json_t *o, const char *name, struct ds_err *err)
{
	static const char *const keys[] = { "type", "individual_digits", NULL };
	const json_t *one = json_object_get(o, "individual_digits");

	if (known_keys(o, keys, name, "the pre-tokenizer 'Digits'", err))
		return err->code;
	if (!json_is_boolean(one))
		return err_set(err, DS_DATA, "'%s': pre-tokenizer 'Digits' without 'individual_digits'", name);
	return json_is_true(one) ? add_split(pre, "\\p{N}", 5, name, err) : add_split(pre, "\\p{N}+", 6, name, err);
}

static int parse_step(struct pre *pre, const json_t *o, const char *name, int depth, struct ds_err *err)
{
	const char *type = type_of(o);
	const json_t *list, *step;
	size_t i;

	if (pre->bytes)
		return err_set(err, DS_DATA, "'%s': pre-tokenizer '%s' behind 'ByteLevel'", name, type);
	if (!strcmp(type, "Split"))
		return parse_split(pre, o, name, err);
	if (!strcmp(type, "ByteLevel"))
		return parse_bytes(pre, o, name, err);
	if (!strcmp(type, "Digits"))
		return parse_digits(pre, o, name, err);
	list = json_object_get(o, "pretokenizers");
	if (strcmp(type, "Sequence") || !json_is_array(list) || depth > 3)
		return err_set(err, DS_DATA, "'%s': unknown pre-tokenizer '%s'", name, type);
	json_array_foreach(list, i, step)
		if (parse_step(pre, step, name, depth + 1, err))
			return err->code;
	return 0;
}

int pre_parse(struct pre **out, const json_t *json, const char *name, struct ds_err *err)
{
	struct pre *pre = mem_calloc(1, sizeof(*pre));

	*out = NULL;
	if (!pre)
		return err_nomem(err, sizeof(*pre), "the pre-tokenizer");
	if (parse_step(pre, json, name, 0, err))
		goto out;
	if (!pre->bytes) {
		err_set(err, DS_DATA, "'%s': pre-tokenizer without 'ByteLevel': only byte-level BPE is known", name);
		goto out;
	}
	pre->mc = pcre2_match_context_create(NULL);
	pre->stack = pcre2_jit_stack_create(32 * 1024, 4 * 1024 * 1024, NULL);
	if (!pre->mc || !pre->stack) {
		err_nomem(err, 32 * 1024, "the pre-tokenizer");
		goto out;
	}
	pcre2_jit_stack_assign(pre->mc, NULL, pre->stack);
	pcre2_set_match_limit(pre->mc, MATCH_LIMIT);
	pcre2_set_heap_limit(pre->mc, MATCH_HEAP_KIB);
	*out = pre;
	return 0;
out:
	pre_free(pre);
	return err->code;
}

static int match_error(int rc, size_t split, struct ds_err *err)
{
	PCRE2_UCHAR why[128];

	pcre2_get_error_message(rc, why, sizeof(why));
	return err_set(err, DS_DATA, "pattern %zu of the pre-tokenizer fails on this text: %s", split + 1,
		(const char *)why);
}

static int split_from(struct pre *pre, size_t k, const char *text, size_t n, pre_fn *fn, void *ctx, struct ds_err *err)
{
	size_t done = 0, from = 0;

	if (!n)
		return 0;
	if (k == pre->n)
		return fn(ctx, text, n, err);
	while (from <= n) {
		int rc = pcre2_match(pre->v[k].code, (PCRE2_SPTR)text, n, from, PCRE2_NO_UTF_CHECK, pre->v[k].md,
			pre->mc);
		const PCRE2_SIZE *at = pcre2_get_ovector_pointer(pre->v[k].md);
		size_t start, end, len;
		if (rc == PCRE2_ERROR_NOMATCH)
			break;
		if (rc < 0)
			return match_error(rc, k, err);
		start = at[0];
		end = at[1];
		if (split_from(pre, k + 1, text + done, start - done, fn, ctx, err) ||
		    split_from(pre, k + 1, text + start, end - start, fn, ctx, err))
			return err->code;
		done = from = end;
		if (end == start) { /* an empty match cuts there; the next begins a character on */
			if (end == n)
				break;
			utf8_get(text + end, &len);
			from = end + len;
		}
	}
	return split_from(pre, k + 1, text + done, n - done, fn, ctx, err);
}

int pre_split(struct pre *pre, const char *text, size_t n, pre_fn *fn, void *ctx, struct ds_err *err)
{
	return split_from(pre, 0, text, n, fn, ctx, err);
}
