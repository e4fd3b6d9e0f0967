/* One JSON object to a request: names as in OpenAI's API.  A key that is not known is refused by name: it would have
 * meant something. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "serve/token.h"

struct parsed {
	struct tokenizing *x;
	struct request *r;
	const json_t *prompt, *prompt_ids, *messages;
	json_t *vars;                /* the options' and this object's */
	bool no_generation_prompt;
	struct ds_err *err;
};

typedef int key_fn(struct parsed *p, const char *key, const json_t *v);

static int bad(struct parsed *p, const char *key, const char *want)
{
	return err_set(p->err, DS_DATA, "'%s' is not %s", key, want);
}

static int get_uint(struct parsed *p, const char *key, const json_t *v, uint64_t max, uint64_t *out)
{
	if (!json_is_integer(v) || json_integer_value(v) < 0 || (uint64_t)json_integer_value(v) > max)
		return err_set(p->err, DS_DATA, "'%s' is not a whole number from 0 to %" PRIu64, key, max);
	*out = (uint64_t)json_integer_value(v);
	return 0;
}

static int key_id(struct parsed *p, const char *key, const json_t *v)
{
	size_t n = json_string_length(v);

	if (json_is_integer(v)) {
		snprintf(p->r->id, sizeof(p->r->id), "%" JSON_INTEGER_FORMAT, json_integer_value(v));
		return 0;
	}
	if (!json_is_string(v) || !n || n > REQUEST_ID_MAX || strlen(json_string_value(v)) != n)
		return bad(p, key, "a text of 1 to 64 bytes");
	memcpy(p->r->id, json_string_value(v), n + 1);
	return 0;
}

static int key_prompt(struct parsed *p, const char *key, const json_t *v) { (void)key; p->prompt = v; return 0; }
static int key_prompt_ids(struct parsed *p, const char *key, const json_t *v)
{
	(void)key;
	p->prompt_ids = v;
	return 0;
}
static int key_messages(struct parsed *p, const char *key, const json_t *v) { (void)key; p->messages = v; return 0; }
static int key_ignored(struct parsed *p, const char *key, const json_t *v) { (void)p; (void)key; (void)v; return 0; }

static int key_max_tokens(struct parsed *p, const char *key, const json_t *v)
{
	if (json_is_null(v))
		return 0;
	return get_uint(p, key, v, UINT32_MAX, &p->r->max_tokens);
}

static int key_temperature(struct parsed *p, const char *key, const json_t *v)
{
	double t = json_number_value(v);

	if (!json_is_number(v) || !(t >= 0 && t <= 100))
		return bad(p, key, "a number from 0 to 100");
	p->r->sampling.temperature = t;
	return 0;
}

static int key_top_p(struct parsed *p, const char *key, const json_t *v)
{
	double t = json_number_value(v);

	if (!json_is_number(v) || !(t > 0 && t <= 1))
		return bad(p, key, "a number above 0 and up to 1");
	p->r->sampling.top_p = t;
	return 0;
}

static int key_top_k(struct parsed *p, const char *key, const json_t *v)
{
	return get_uint(p, key, v, UINT32_MAX, &p->r->sampling.top_k);
}

static int key_seed(struct parsed *p, const char *key, const json_t *v)
{
	return get_uint(p, key, v, INT64_MAX, &p->r->sampling.seed);
}

static int get_bool(struct parsed *p, const char *key, const json_t *v, bool *out)
{
	if (!json_is_boolean(v))
		return bad(p, key, "true or false");
	*out = json_is_true(v);
	return 0;
}

static int key_logprobs(struct parsed *p, const char *key, const json_t *v)
{
	return get_bool(p, key, v, &p->r->sampling.logprobs);
}
static int key_ignore_eos(struct parsed *p, const char *key, const json_t *v)
{
	return get_bool(p, key, v, &p->r->ignore_eos);
}

static int key_generation(struct parsed *p, const char *key, const json_t *v)
{
	bool on = true;

	if (get_bool(p, key, v, &on))
		return p->err->code;
	p->no_generation_prompt = !on;
	return 0;
}

static int key_stop_ids(struct parsed *p, const char *key, const json_t *v)
{
	size_t n = json_array_size(v);

	if (!json_is_array(v) || n > REQUEST_MAX_STOP_IDS)
		return bad(p, key, "an array of up to 16 token ids");
	p->r->stop_id_count = 0;
	for (size_t i = 0; i < n; i++) {
		uint64_t id;
		if (get_uint(p, key, json_array_get(v, i), UINT32_MAX, &id))
			return p->err->code;
		p->r->stop_ids[p->r->stop_id_count++] = (uint32_t)id;
	}
	return 0;
}

static int key_one(struct parsed *p, const char *key, const json_t *v)
{
	return json_integer_value(v) == 1 ? 0 : bad(p, key, "1: a request has one answer");
}

static int key_vars(struct parsed *p, const char *key, const json_t *v)
{
	if (!json_is_object(v))
		return bad(p, key, "an object");
	return json_object_update(p->vars, (json_t *)(uintptr_t)v) ? err_nomem(p->err, 64, "variables") : 0;
}

static int key_tools(struct parsed *p, const char *key, const json_t *v)
{
	if (!json_is_array(v) && !json_is_null(v))
		return bad(p, key, "an array");
	return json_object_set(p->vars, "tools", (json_t *)(uintptr_t)v) ? err_nomem(p->err, 64, "variables") : 0;
}

static const struct { const char *key; key_fn *fn; } keys[] = {
	{ "id", key_id }, { "prompt", key_prompt }, { "prompt_ids", key_prompt_ids }, { "messages", key_messages },
	{ "max_tokens", key_max_tokens }, { "max_completion_tokens", key_max_tokens },
	{ "temperature", key_temperature }, { "top_p", key_top_p },
	{ "top_k", key_top_k }, { "seed", key_seed }, { "logprobs", key_logprobs }, { "ignore_eos", key_ignore_eos },
	{ "stop_token_ids", key_stop_ids }, { "n", key_one }, { "tools", key_tools },
	{ "chat_template_kwargs", key_vars },
	{ "add_generation_prompt", key_generation }, { "user", key_ignored }, { "metadata", key_ignored },
	{ "model", key_ignored },
	{ "stream", key_ignored },
};

/* key is one of those in a list with commas. */
static bool listed(const char *list, const char *key)
{
	size_t n = strlen(key);

	for (const char *p = list; p; p = strchr(p, ',')) {
		p += *p == ',';
		if (!strncmp(p, key, n) && (p[n] == ',' || !p[n]))
			return true;
	}
	return false;
}

static int read_key(struct parsed *p, const char *key, const json_t *v)
{
	const struct opt_list *ignore = &p->x->o->ignore;

	for (size_t i = 0; i < ARRAY_LEN(keys); i++)
		if (!strcmp(key, keys[i].key))
			return keys[i].fn(p, key, v);
	for (size_t i = 0; i < ignore->n; i++)
		if (listed(ignore->v[i], key))
			return 0;
	return err_set(p->err, DS_DATA, "unknown key '%s' (--ignore %s passes over it)", key, key);
}

static int read_object(struct parsed *p, const json_t *o)
{
	const char *key;
	json_t *v;

	if (!json_is_object(o))
		return err_set(p->err, DS_DATA, "no JSON object");
	v = json_object_get(o, "id"); /* first: an error is about this request */
	if (v && key_id(p, "id", v))
		return p->err->code;
	json_object_foreach((json_t *)(uintptr_t)o, key, v)
		if (read_key(p, key, v))
			return p->err->code;
	if (!p->prompt + !p->prompt_ids + !p->messages != 2)
		return err_set(p->err, DS_DATA, "one of 'prompt', 'prompt_ids' and 'messages' is needed");
	if (json_is_array(p->prompt)) { /* told apart by what is in it */
		if (json_is_integer(json_array_get(p->prompt, 0)))
			p->prompt_ids = p->prompt;
		else
			p->messages = p->prompt;
		p->prompt = NULL;
	}
	return 0;
}

static int ids_of(struct parsed *p, const json_t *list, struct ids *ids)
{
	uint64_t id, vocab = p->x->vocab ? p->x->vocab : tokenizer_vocab(p->x->t);
	const json_t *v;
	size_t i;

	if (!json_is_array(list))
		return bad(p, "prompt_ids", "an array of token ids");
	json_array_foreach(list, i, v) {
		if (get_uint(p, "prompt_ids", v, vocab - 1, &id))
			return p->err->code;
		if (!ids_add(ids, (uint32_t)id))
			return err_nomem(p->err, 64, "token ids");
	}
	return ids->n ? 0 : err_set(p->err, DS_DATA, "the prompt is empty");
}

/* The option's system prompt goes in front where the messages have none. */
static json_t *with_system(struct parsed *p, const json_t *messages)
{
	const char *system = p->x->o->system, *role = json_string_value(json_object_get(json_array_get(messages, 0),
		"role"));
	json_t *copy;

	if (!system || (role && !strcmp(role, "system")))
		return json_incref((json_t *)(uintptr_t)messages);
	copy = json_copy((json_t *)(uintptr_t)messages);
	if (copy && json_array_insert_new(copy, 0, json_pack("{s:s, s:s}", "role", "system", "content", system))) {
		json_decref(copy);
		return NULL;
	}
	return copy;
}

static int render(struct parsed *p, struct buf *out)
{
	const json_t *m;
	json_t *messages;
	size_t i;
	int rc;

	if (!json_is_array(p->messages) || !json_array_size(p->messages))
		return bad(p, "messages", "an array of messages");
	json_array_foreach(p->messages, i, m)
		if (!json_is_string(json_object_get(m, "role")))
			return err_set(p->err, DS_DATA, "message %zu has no 'role'", i);
	messages = with_system(p, p->messages);
	if (!messages)
		return err_set(p->err, DS_DATA, "the system prompt is not UTF-8");
	rc = chat_render(p->x->t, messages, !p->no_generation_prompt, p->vars, out, p->err);
	json_decref(messages);
	return rc;
}

static int prompt_ids(struct parsed *p, struct ids *ids)
{
	struct buf text = { 0 };
	int rc;

	if (p->prompt_ids)
		return ids_of(p, p->prompt_ids, ids);
	if (p->prompt) {
		if (!json_is_string(p->prompt))
			return bad(p, "prompt", "a text, messages, or token ids");
		return token_from_text(p->x, json_string_value(p->prompt), json_string_length(p->prompt), ids, p->err);
	}
	rc = render(p, &text);
	if (!rc)
		rc = tokenizer_encode(p->x->t, text.p ? text.p : "", text.len, ids, p->err);
	if (!rc && !ids->n)
		rc = err_set(p->err, DS_DATA, "the prompt is empty");
	buf_free(&text);
	return rc;
}

static json_t *parse(const char *json, size_t n, struct ds_err *err)
{
	json_error_t why;
	json_t *root = json_loadb(json, n, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &why);

	if (!root)
		err_set(err, DS_DATA, "bad JSON: %s", why.text);
	return root;
}

int token_from_json(struct tokenizing *x, const char *json, size_t n, struct request *r, struct ids *ids,
	struct ds_err *err)
{
	struct parsed p = { .x = x, .r = r, .err = err, .vars = json_copy(x->vars) };
	json_t *root = parse(json, n, err);
	int rc = root ? read_object(&p, root) : err->code;

	if (!rc)
		rc = prompt_ids(&p, ids);
	json_decref(root);
	json_decref(p.vars);
	return rc;
}

int token_render_json(struct tokenizing *x, const char *json, size_t n, struct buf *out, struct ds_err *err)
{
	struct request r = { 0 };
	struct parsed p = { .x = x, .r = &r, .err = err, .vars = json_copy(x->vars) };
	json_t *root = parse(json, n, err);
	int rc = root ? 0 : err->code;

	if (!rc && json_is_array(root))
		p.messages = root;
	else if (!rc)
		rc = read_object(&p, root);
	if (!rc && !p.messages)
		rc = err_set(err, DS_DATA, "no messages to render");
	if (!rc)
		rc = render(&p, out);
	json_decref(root);
	json_decref(p.vars);
	return rc;
}
