#include "serve/token_openai.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

/* ---- keys that change nothing ---- */

typedef bool neutral_fn(const json_t *v, uint64_t n);

static bool is_word(const json_t *v, const char *word)
{
	return json_is_string(v) && !strcmp(json_string_value(v), word);
}

static bool is_object(const json_t *v, uint64_t n) { (void)n; return json_is_object(v); }
static bool is_true(const json_t *v, uint64_t n) { (void)n; return json_is_true(v); }
static bool is_false(const json_t *v, uint64_t n) { (void)n; return json_is_false(v); }

static bool is_zero(const json_t *v, uint64_t n)
{
	(void)n;
	return json_is_integer(v) && json_integer_value(v) == 0;
}

static bool is_one(const json_t *v, uint64_t n)
{
	(void)n;
	return json_is_number(v) && json_number_value(v) == 1.0;
}

/* As many as there are answers: none is left out. */
static bool is_all(const json_t *v, uint64_t n)
{
	return json_is_integer(v) && (json_integer_value(v) == 1 || (uint64_t)json_integer_value(v) == n);
}

static bool is_plain(const json_t *v, uint64_t n)
{
	(void)n;
	return json_object_size(v) == 1 && is_word(json_object_get(v, "type"), "text");
}

static bool is_free(const json_t *v, uint64_t n)
{
	(void)n;
	return is_word(v, "auto") || is_word(v, "none");
}

static const struct { const char *key; neutral_fn *is; } neutral[] = {
	{ "stream_options", is_object }, { "response_format", is_plain }, { "tool_choice", is_free },
	{ "parallel_tool_calls", is_true }, { "best_of", is_all }, { "echo", is_false }, { "min_tokens", is_zero },
	{ "include_stop_str_in_output", is_false }, { "skip_special_tokens", is_true },
	{ "spaces_between_special_tokens", is_true }, { "length_penalty", is_one }, { "use_beam_search", is_false },
};

static size_t neutral_at(const char *key)
{
	size_t i = 0;

	while (i < ARRAY_LEN(neutral) && strcmp(key, neutral[i].key))
		i++;
	return i;
}

bool openai_neutral_key(const char *key)
{
	return neutral_at(key) < ARRAY_LEN(neutral);
}

int openai_check_neutral(const char *key, const json_t *v, uint64_t n, struct ds_err *err)
{
	size_t i = neutral_at(key);
	char *text;

	if (i == ARRAY_LEN(neutral) || json_is_null(v) || neutral[i].is(v, n))
		return 0;
	text = json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT | JSON_ENSURE_ASCII);
	err_set(err, DS_DATA, "'%s' is %.80s: not supported (--ignore %s passes over it)", key, text ? text : "?", key);
	free(text);
	return err->code;
}

/* ---- content in parts ---- */

static int add_part(struct buf *text, size_t message, const json_t *part, struct ds_err *err)
{
	const json_t *type = json_object_get(part, "type"), *v = json_object_get(part, "text");

	if (!json_is_string(type))
		return err_set(err, DS_DATA, "message %zu has a content part without a 'type'", message);
	if (!is_word(type, "text"))
		return err_set(err, DS_DATA, "message %zu has a content part of type '%.40s': only 'text' is supported",
			message, json_string_value(type));
	if (!json_is_string(v))
		return err_set(err, DS_DATA, "message %zu has a content part of type 'text' without a 'text'", message);
	if (text->p)
		buf_str(text, "\n");
	buf_add(text, json_string_value(v), json_string_length(v));
	return 0;
}

/* The message with its parts as one text. */
static json_t *joined(const json_t *message, size_t number, const json_t *parts, struct ds_err *err)
{
	json_t *copy = NULL, *content = NULL;
	struct buf text = { 0 };
	const json_t *part;
	size_t i;

	if (!json_array_size(parts)) {
		err_set(err, DS_DATA, "message %zu has an empty array as its 'content'", number);
		return NULL;
	}
	json_array_foreach(parts, i, part)
		if (add_part(&text, number, part, err))
			goto out;
	content = text.nomem ? NULL : json_stringn(text.p, text.len);
	copy = content ? json_copy((json_t *)(uintptr_t)message) : NULL;
	if (!copy || json_object_set(copy, "content", content)) {
		err_nomem(err, text.len, "a message");
		json_decref(copy);
		copy = NULL;
	}
out:
	json_decref(content);
	buf_free(&text);
	return copy;
}

json_t *openai_plain_messages(const json_t *messages, struct ds_err *err)
{
	json_t *list = json_copy((json_t *)(uintptr_t)messages);
	const json_t *m;
	size_t i;

	if (!list)
		err_nomem(err, 64, "messages");
	json_array_foreach(messages, i, m) {
		const json_t *content = json_object_get(m, "content");
		json_t *plain;

		if (!list || !json_is_array(content))
			continue;
		plain = joined(m, i, content, err);
		if (!plain || json_array_set_new(list, i, plain)) {
			json_decref(list);
			return NULL;
		}
	}
	return list;
}
