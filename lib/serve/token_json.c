/* One JSON object to a request: names as in OpenAI's API.  A key that is not known is refused by name: it would have
 * meant something. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "model/file.h"
#include "serve/token.h"
#include "serve/token_openai.h"

enum { GENERATION_BYTES = 1 << 20 };

struct parsed {
	struct tokenizing *x;
	struct request *r;
	const json_t *prompt, *prompt_ids, *messages;
	json_t *vars;                /* the options' and this object's */
	bool no_generation_prompt;
	bool no_logprobs, tops;      /* "logprobs": false; top_logprobs was said */
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
	return get_uint(p, key, v, UINT32_MAX, &p->r->max_tokens);
}

/* A number from min, or above it, up to max. */
static int get_real(struct parsed *p, const char *key, const json_t *v, double min, bool above, double max, double *out)
{
	double d = json_number_value(v);

	if (!json_is_number(v) || !(above ? d > min : d >= min) || !(d <= max))
		return err_set(p->err, DS_DATA, "'%s' is not a number %s %g %s %g", key, above ? "above" : "from", min,
			above ? "and up to" : "to", max);
	*out = d;
	return 0;
}

static int key_temperature(struct parsed *p, const char *key, const json_t *v)
{
	return get_real(p, key, v, 0, false, 100, &p->r->sampling.temperature);
}

static int key_top_p(struct parsed *p, const char *key, const json_t *v)
{
	return get_real(p, key, v, 0, true, 1, &p->r->sampling.top_p);
}

static int key_min_p(struct parsed *p, const char *key, const json_t *v)
{
	return get_real(p, key, v, 0, false, 1, &p->r->sampling.min_p);
}

static int key_repetition(struct parsed *p, const char *key, const json_t *v)
{
	return get_real(p, key, v, 0, true, 10, &p->r->sampling.repetition);
}

static int key_presence(struct parsed *p, const char *key, const json_t *v)
{
	return get_real(p, key, v, -2, false, 2, &p->r->sampling.presence);
}

static int key_frequency(struct parsed *p, const char *key, const json_t *v)
{
	return get_real(p, key, v, -2, false, 2, &p->r->sampling.frequency);
}

static int key_top_k(struct parsed *p, const char *key, const json_t *v)
{
	if (json_is_integer(v) && json_integer_value(v) == -1) { /* vLLM's "all" */
		p->r->sampling.top_k = 0;
		return 0;
	}
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

/* true or false as in chat completions; or, as in completions, how many of the likeliest. */
static int key_logprobs(struct parsed *p, const char *key, const json_t *v)
{
	struct sampling *s = &p->r->sampling;

	if (!json_is_boolean(v)) {
		if (get_uint(p, key, v, REQUEST_MAX_LOGPROBS, &s->top_logprobs))
			return p->err->code;
		s->logprobs = true;
		return 0;
	}
	s->logprobs = json_is_true(v);
	p->no_logprobs = !s->logprobs;
	return 0;
}

static int key_tops(struct parsed *p, const char *key, const json_t *v)
{
	p->tops = true;
	return get_uint(p, key, v, REQUEST_MAX_LOGPROBS, &p->r->sampling.top_logprobs);
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
	uint64_t vocab = token_vocab(p->x);
	size_t n = json_array_size(v);

	if (!json_is_array(v) || n > REQUEST_MAX_STOP_IDS)
		return bad(p, key, "an array of up to 16 token ids");
	p->r->stop_id_count = 0;
	for (size_t i = 0; i < n; i++) {
		uint64_t id;
		if (get_uint(p, key, json_array_get(v, i), vocab - 1, &id))
			return p->err->code;
		p->r->stop_ids[p->r->stop_id_count++] = (uint32_t)id;
	}
	return 0;
}

static int key_stop(struct parsed *p, const char *key, const json_t *v)
{
	bool one = json_is_string(v);
	size_t n = one ? 1 : json_array_size(v);

	if (!one && !json_is_array(v))
		return bad(p, key, "a text or an array of texts");
	p->r->stop_count = 0;
	for (size_t i = 0; i < n; i++) {
		const json_t *s = one ? v : json_array_get(v, i);

		if (!json_is_string(s))
			return bad(p, key, "a text or an array of texts");
		if (token_add_stop(p->r, json_string_value(s), json_string_length(s), p->err))
			return p->err->code;
	}
	return 0;
}

static int key_bias(struct parsed *p, const char *key, const json_t *v)
{
	uint64_t vocab = token_vocab(p->x);
	const char *name;
	json_t *bias;
	int64_t id;

	if (!json_is_object(v))
		return bad(p, key, "an object of token ids and numbers");
	p->r->sampling.bias_count = 0;
	json_object_foreach((json_t *)(uintptr_t)v, name, bias) {
		double d = json_number_value(bias);

		if (parse_int(name, 0, (int64_t)vocab - 1, &id))
			return err_set(p->err, DS_DATA, "'%s' has '%s', no token id from 0 to %" PRIu64, key, name,
				vocab - 1);
		if (!json_is_number(bias) || !(d >= -100 && d <= 100))
			return err_set(p->err, DS_DATA, "'%s' of token %s is not a number from -100 to 100", key, name);
		if (!request_add_bias(&p->r->sampling, (uint32_t)id, (float)d))
			return err_set(p->err, DS_DATA, "'%s' has token %s twice, or over %d tokens", key, name,
				REQUEST_MAX_BIAS);
	}
	return 0;
}

static int key_n(struct parsed *p, const char *key, const json_t *v)
{
	if (!json_is_integer(v) || json_integer_value(v) < 1 || json_integer_value(v) > REQUEST_MAX_N)
		return bad(p, key, "a whole number from 1 to 128");
	p->r->n = (uint64_t)json_integer_value(v);
	return 0;
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

/* null is for `nullable` ones what leaving them out is, as in OpenAI's API. */
static const struct { const char *key; key_fn *fn; bool nullable; } keys[] = {
	{ "id", key_id, false }, { "prompt", key_prompt, false }, { "prompt_ids", key_prompt_ids, false },
	{ "messages", key_messages, false }, { "max_tokens", key_max_tokens, true },
	{ "max_completion_tokens", key_max_tokens, true }, { "temperature", key_temperature, true },
	{ "top_p", key_top_p, true }, { "top_k", key_top_k, true }, { "min_p", key_min_p, true },
	{ "repetition_penalty", key_repetition, true }, { "presence_penalty", key_presence, true },
	{ "frequency_penalty", key_frequency, true }, { "logit_bias", key_bias, true }, { "seed", key_seed, true },
	{ "logprobs", key_logprobs, true }, { "top_logprobs", key_tops, true }, { "stop", key_stop, true },
	{ "stop_token_ids", key_stop_ids, true }, { "ignore_eos", key_ignore_eos, true }, { "n", key_n, true },
	{ "tools", key_tools, false }, { "chat_template_kwargs", key_vars, true },
	{ "add_generation_prompt", key_generation, true }, { "user", key_ignored, true },
	{ "metadata", key_ignored, true }, { "model", key_ignored, true }, { "stream", key_ignored, true },
};

static bool passed_over(const struct parsed *p, const char *key)
{
	const struct opt_list *ignore = &p->x->o->ignore;

	for (size_t i = 0; i < ignore->n; i++)
		if (opt_listed(ignore->v[i], ',', key))
			return true;
	return false;
}

static int read_key(struct parsed *p, const char *key, const json_t *v)
{
	for (size_t i = 0; i < ARRAY_LEN(keys); i++)
		if (!strcmp(key, keys[i].key))
			return keys[i].nullable && json_is_null(v) ? 0 : keys[i].fn(p, key, v);
	if (passed_over(p, key) || openai_neutral_key(key)) /* which is looked at when all keys are read */
		return 0;
	return err_set(p->err, DS_DATA, "unknown key '%s' (--ignore %s passes over it)", key, key);
}

/* top_logprobs asks for logprobs, too; a plain "logprobs": false takes back what the options ask for. */
static int settle_logprobs(struct parsed *p)
{
	struct sampling *s = &p->r->sampling;

	if (p->no_logprobs && p->tops && s->top_logprobs)
		return err_set(p->err, DS_DATA, "'top_logprobs' is %" PRIu64 ", but 'logprobs' is false",
			s->top_logprobs);
	if (p->no_logprobs)
		s->top_logprobs = 0;
	s->logprobs |= s->top_logprobs > 0;
	return 0;
}

/* What changes nothing; once all keys are read, as it may hang on another. */
static int check_neutral(struct parsed *p, const json_t *o)
{
	const char *key;
	json_t *v;

	json_object_foreach((json_t *)(uintptr_t)o, key, v)
		if (!passed_over(p, key) && openai_check_neutral(key, v, p->r->n, p->err))
			return p->err->code;
	return 0;
}

/* An array is told apart by what is in it: token ids, messages, or, as in OpenAI's completions, the prompt itself. */
static int settle_prompt(struct parsed *p)
{
	const json_t *first = json_array_get(p->prompt, 0);

	if (!json_is_array(p->prompt))
		return 0;
	if ((json_is_string(first) || json_is_array(first)) && json_array_size(p->prompt) > 1)
		return err_set(p->err, DS_DATA, "'prompt' has %zu prompts, one a line is taken",
			json_array_size(p->prompt));
	if (json_is_string(first)) {
		p->prompt = first;
		return 0;
	}
	if (json_is_array(first) || json_is_integer(first))
		p->prompt_ids = json_is_array(first) ? first : p->prompt;
	else
		p->messages = p->prompt;
	p->prompt = NULL;
	return 0;
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
	if (check_neutral(p, o) || settle_logprobs(p))
		return p->err->code;
	if (!p->prompt + !p->prompt_ids + !p->messages != 2)
		return err_set(p->err, DS_DATA, "one of 'prompt', 'prompt_ids' and 'messages' is needed");
	return settle_prompt(p);
}

static int ids_of(struct parsed *p, const json_t *list, struct ids *ids)
{
	uint64_t id, vocab = token_vocab(p->x);
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
	json_t *messages, *plain;
	const json_t *m;
	size_t i;
	int rc;

	if (!json_is_array(p->messages) || !json_array_size(p->messages))
		return bad(p, "messages", "an array of messages");
	json_array_foreach(p->messages, i, m)
		if (!json_is_string(json_object_get(m, "role")))
			return err_set(p->err, DS_DATA, "message %zu has no 'role'", i);
	plain = openai_plain_messages(p->messages, p->err);
	if (!plain)
		return p->err->code;
	messages = with_system(p, plain);
	json_decref(plain);
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

/* ---- the model's own defaults ---- */

static const struct { const char *key, *option; key_fn *fn; bool drawn; } generation[] = {
	{ "temperature", "temperature", key_temperature, true }, { "top_p", "top-p", key_top_p, true },
	{ "top_k", "top-k", key_top_k, true }, { "min_p", "min-p", key_min_p, true },
	{ "repetition_penalty", "repetition-penalty", key_repetition, false },
};

int token_generation_config(struct tokenizing *x, struct ds_err *err)
{
	struct parsed p = { .x = x, .r = &x->defaults, .err = err };
	struct text t;
	json_t *root;
	int rc = file_read(x->o->model, "generation_config.json", GENERATION_BYTES, &t, err);
	bool greedy;

	if (rc)
		return rc;
	root = parse(t.p, t.n, err);
	rc = !root ? err->code : json_is_object(root) ? 0 : err_set(err, DS_DATA, "no JSON object");
	greedy = json_is_false(json_object_get(root, "do_sample"));
	for (size_t i = 0; !rc && i < ARRAY_LEN(generation); i++) {
		const json_t *v = json_object_get(root, generation[i].key);

		if (v && !json_is_null(v) && !(generation[i].drawn && greedy) && !x->o->given(generation[i].option))
			rc = generation[i].fn(&p, generation[i].key, v);
	}
	if (rc)
		err_prefix(err, "'%s'", t.path);
	json_decref(root);
	file_free(&t);
	return rc;
}
