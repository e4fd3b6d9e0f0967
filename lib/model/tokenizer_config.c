/* tokenizer_config.json: which token begins and ends, and the chat template. */
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "model/file.h"
#include "model/tokenizer_impl.h"

enum { CONFIG_MAX_FILE = 32 << 20, TEMPLATE_MAX_FILE = 1 << 20 };

const char *const tokenizer_special_names[4] = { "bos_token", "eos_token", "pad_token", "unk_token" };

/* "text", {"content": "text"} or null */
static int read_special(struct tokenizer *t, const json_t *v, size_t i, const char *path, struct ds_err *err)
{
	const json_t *s = json_is_object(v) ? json_object_get(v, "content") : v;

	if (!v || json_is_null(v))
		return 0;
	if (!json_is_string(s) || strlen(json_string_value(s)) != json_string_length(s))
		return err_set(err, DS_DATA, "'%s': '%s' is no string", path, tokenizer_special_names[i]);
	t->special[i] = strdup(json_string_value(s));
	return t->special[i] ? 0 : err_nomem(err, json_string_length(s), "a token");
}

/* Absent, the class of the tokenizer decides: Llama's adds it. */
static int read_add_bos(struct tokenizer *t, const json_t *root, const char *path, struct ds_err *err)
{
	const json_t *v = json_object_get(root, "add_bos_token");
	const char *class = json_string_value(json_object_get(root, "tokenizer_class"));

	if (v && !json_is_null(v) && !json_is_boolean(v))
		return err_set(err, DS_DATA, "'%s': 'add_bos_token' is neither true nor false", path);
	t->add_bos = json_is_boolean(v) ? json_is_true(v) : class && !strncmp(class, "LlamaTokenizer", 14);
	if (json_is_true(json_object_get(root, "add_eos_token")))
		return err_set(err, DS_DATA, "'%s': 'add_eos_token' is set: a prompt that is ended cannot be "
			"continued", path);
	t->bos = t->special[0] ? tokenizer_id(t, t->special[0]) : -1;
	for (size_t i = 0; i < 2; i++)
		if (t->special[i] && tokenizer_id(t, t->special[i]) < 0)
			return err_set(err, DS_DATA, "'%s': '%s' is '%s', which is not in the vocabulary", path,
				tokenizer_special_names[i], t->special[i]);
	if (t->add_bos && t->bos < 0)
		return err_set(err, DS_DATA, "'%s': 'add_bos_token' without 'bos_token'", path);
	return 0;
}

static int set_template(struct tokenizer *t, const char *text, size_t n, struct ds_err *err)
{
	t->chat_template = mem_array(n + 1, 1);
	if (!t->chat_template)
		return err_nomem(err, n, "the chat template");
	memcpy(t->chat_template, text, n);
	t->chat_template[n] = 0;
	t->chat_template_len = n;
	return 0;
}

/* A string, or [{"name": ..., "template": ...}, ...], of which "default" is taken. */
static int read_template(struct tokenizer *t, const json_t *v, const char *path, struct ds_err *err)
{
	const json_t *one;
	size_t i;

	if (!v || json_is_null(v))
		return 0;
	json_array_foreach(v, i, one) {
		const char *name = json_string_value(json_object_get(one, "name"));
		if (name && !strcmp(name, "default")) {
			v = json_object_get(one, "template");
			break;
		}
	}
	if (!json_is_string(v))
		return err_set(err, DS_DATA, "'%s': 'chat_template' is neither a string nor a list with one named "
			"'default'", path);
	return set_template(t, json_string_value(v), json_string_length(v), err);
}

static int read_config(struct tokenizer *t, const char *text, size_t n, const char *path, struct ds_err *err)
{
	json_error_t why;
	json_t *root = json_loadb(text, n, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &why);
	int rc = 0;

	if (!root)
		return err_set(err, DS_DATA, "'%s': bad JSON at line %d: %s", path, why.line, why.text);
	if (!json_is_object(root))
		rc = err_set(err, DS_DATA, "'%s': no JSON object", path);
	for (size_t i = 0; !rc && i < ARRAY_LEN(t->special); i++)
		rc = read_special(t, json_object_get(root, tokenizer_special_names[i]), i, path, err);
	if (!rc)
		rc = read_add_bos(t, root, path, err);
	if (!rc && !t->chat_template)
		rc = read_template(t, json_object_get(root, "chat_template"), path, err);
	json_decref(root);
	return rc;
}

/* A template in a file of its own goes before the one in tokenizer_config.json. */
static int read_template_file(struct tokenizer *t, const char *dir, struct ds_err *err)
{
	struct text f;
	size_t bad;
	int rc = file_read_if_there(dir, "chat_template.jinja", TEMPLATE_MAX_FILE, &f, err);

	if (rc || !f.p)
		return rc;
	if (utf8_valid(f.p, f.n, &bad))
		rc = set_template(t, f.p, f.n, err);
	else
		rc = err_set(err, DS_DATA, "'%s' is not UTF-8 at offset %zu", f.path, bad);
	file_free(&f);
	return rc;
}

int tokenizer_config_load(struct tokenizer *t, const char *dir, struct ds_err *err)
{
	struct text f;
	int rc = read_template_file(t, dir, err);

	if (!rc)
		rc = file_read_if_there(dir, "tokenizer_config.json", CONFIG_MAX_FILE, &f, err);
	if (rc || !f.p)
		return rc;
	rc = read_config(t, f.p, f.n, f.path, err);
	file_free(&f);
	return rc;
}
