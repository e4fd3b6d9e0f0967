/* Options and plain text to prompts. */
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "model/config.h"
#include "serve/token.h"

/* NAME=VALUE: VALUE is JSON, or else a string. */
static int add_variable(struct tokenizing *x, const char *text, struct ds_err *err)
{
	const char *eq = strchr(text, '=');
	char *name;
	json_t *v;
	int rc;

	if (!eq || eq == text)
		return err_set(err, DS_USAGE, "--var: '%s' is not NAME=VALUE", text);
	name = strndup(text, (size_t)(eq - text));
	v = json_loads(eq + 1, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, NULL);
	if (!v)
		v = json_string(eq + 1);
	if (name && !v)
		rc = err_set(err, DS_USAGE, "--var: '%s' is not UTF-8", text);
	else
		rc = !name || json_object_set_new(x->vars, name, v) ? err_set(err, DS_USAGE,
			"--var: '%s' cannot be set", text) : 0;
	free(name);
	return rc;
}

int token_add_stop(struct request *r, const char *p, size_t n, struct ds_err *err)
{
	struct stop_string *s = &r->stops[r->stop_count];

	if (r->stop_count == REQUEST_MAX_STOPS)
		return err_set(err, DS_DATA, "'stop' has more than %d texts", REQUEST_MAX_STOPS);
	if (!n || n > REQUEST_STOP_BYTES || !utf8_valid(p, n, NULL))
		return err_set(err, DS_DATA, "'stop' has a text of %zu bytes, not UTF-8 of 1 to %d", n,
			REQUEST_STOP_BYTES);
	s->n = n;
	memcpy(s->p, p, n);
	r->stop_count++;
	return 0;
}

/* ID=BIAS */
static int add_bias(struct tokenizing *x, const char *text, struct ds_err *err)
{
	const char *eq = strchr(text, '=');
	char digits[24] = "";
	int64_t id;
	double v;

	if (eq && (size_t)(eq - text) < sizeof(digits))
		memcpy(digits, text, (size_t)(eq - text));
	if (!eq || parse_int(digits, 0, UINT32_MAX, &id) || parse_real(eq + 1, -100.0, 100.0, &v))
		return err_set(err, DS_USAGE,
			"--logit-bias: '%s' is not ID=BIAS, a token id and a number from -100 to 100",
			text);
	if (!request_add_bias(&x->defaults.sampling, (uint32_t)id, (float)v))
		return err_set(err, DS_USAGE, "--logit-bias: token %lld is given twice, or over %d tokens are",
			(long long)id, REQUEST_MAX_BIAS);
	return 0;
}

/* The escapes of printf(1) that a separator may need. */
static int read_separator(struct buf *out, const char *s, struct ds_err *err)
{
	static const char from[] = "ntr0\\", to[] = "\n\t\r\0\\";
	const char *e;

	for (; *s; s++) {
		if (*s != '\\') {
			buf_add(out, s, 1);
			continue;
		}
		e = *++s ? strchr(from, *s) : NULL;
		if (!e)
			return err_set(err, DS_USAGE, "--separator: of escapes \\n, \\t, \\r, \\0 and \\\\ are known");
		buf_add(out, to + (e - from), 1);
	}
	return out->nomem ? err_nomem(err, 16, "the separator") : 0;
}

static int set_defaults(struct tokenizing *x, struct ds_err *err)
{
	const struct token_options *o = x->o;
	struct request *r = &x->defaults;

	request_defaults(r);
	r->sampling.temperature = o->temperature;
	r->sampling.top_p = o->top_p;
	r->sampling.top_k = (uint64_t)o->top_k;
	r->sampling.seed = (uint64_t)o->seed;
	r->sampling.min_p = o->min_p;
	r->sampling.repetition = o->repetition;
	r->sampling.presence = o->presence;
	r->sampling.frequency = o->frequency;
	r->sampling.top_logprobs = (uint64_t)o->top_logprobs;
	r->sampling.logprobs = o->logprobs || o->top_logprobs;
	r->n = (uint64_t)o->n;
	if (!(o->top_p > 0))
		return err_set(err, DS_USAGE, "--top-p: must be above 0");
	if (!(o->repetition > 0))
		return err_set(err, DS_USAGE, "--repetition-penalty: must be above 0 (1: none)");
	r->max_tokens = (uint64_t)o->max_tokens;
	r->ignore_eos = o->ignore_eos;
	if (o->stop_ids.n > REQUEST_MAX_STOP_IDS)
		return err_set(err, DS_USAGE, "--stop-id: at most %d are taken", REQUEST_MAX_STOP_IDS);
	for (size_t i = 0; i < o->stop_ids.n; i++) {
		int64_t id;
		if (parse_int(o->stop_ids.v[i], 0, UINT32_MAX, &id))
			return err_set(err, DS_USAGE, "--stop-id: '%s' is no token id", o->stop_ids.v[i]);
		r->stop_ids[r->stop_id_count++] = (uint32_t)id;
	}
	for (size_t i = 0; i < o->stops.n; i++)
		if (token_add_stop(r, o->stops.v[i], strlen(o->stops.v[i]), err))
			return err_set(err, DS_USAGE,
				"--stop: '%s' is too much, or not UTF-8 of 1 to %d bytes; at most %d are taken",
				o->stops.v[i], REQUEST_STOP_BYTES, REQUEST_MAX_STOPS);
	for (size_t i = 0; i < o->bias.n; i++)
		if (add_bias(x, o->bias.v[i], err))
			return err->code;
	for (size_t i = 0; i < o->vars.n; i++)
		if (add_variable(x, o->vars.v[i], err))
			return err->code;
	return 0;
}

uint64_t token_vocab(const struct tokenizing *x)
{
	return x->vocab ? x->vocab : tokenizer_vocab(x->t);
}

/* Ids of options that no token has. */
static int check_ids(const struct tokenizing *x, struct ds_err *err)
{
	const struct request *r = &x->defaults;
	unsigned long long vocab = token_vocab(x);

	for (size_t i = 0; i < r->stop_id_count; i++)
		if (r->stop_ids[i] >= vocab)
			return err_set(err, DS_USAGE, "--stop-id: %u is not below %llu, the vocabulary of '%s'",
				r->stop_ids[i], vocab, x->o->model);
	for (size_t i = 0; i < r->sampling.bias_count; i++)
		if (r->sampling.bias[i].id >= vocab)
			return err_set(err, DS_USAGE, "--logit-bias: token %u is not below %llu, the vocabulary of "
				"'%s'", r->sampling.bias[i].id, vocab, x->o->model);
	return 0;
}

/* The vocabulary that the model states; a folder with a tokenizer only has none. */
static int read_vocab(struct tokenizing *x, struct ds_err *err)
{
	struct config c;
	bool there;
	int rc = config_load_if_there(x->o->model, &c, &there, err);

	if (rc || !there)
		return rc;
	x->vocab = c.vocab;
	if (tokenizer_vocab(x->t) > c.vocab)
		return err_set(err, DS_DATA, "'%s': the tokenizer has ids up to %zu, the model's vocabulary ends at "
			"%zu", x->o->model,
			tokenizer_vocab(x->t) - 1, c.vocab - 1);
	return 0;
}

int tokenizing_open(struct tokenizing *x, const struct token_options *o, struct ds_err *err)
{
	int rc;

	memset(x, 0, sizeof(*x));
	x->o = o;
	if (!o->model)
		return err_set(err, DS_USAGE, "no --model is given: the folder with tokenizer.json");
	x->vars = json_object();
	rc = x->vars ? set_defaults(x, err) : err_nomem(err, 64, "variables");
	if (!rc)
		rc = read_separator(&x->separator, o->separator, err);
	if (!rc)
		rc = tokenizer_open(&x->t, o->model, err);
	if (!rc)
		rc = read_vocab(x, err);
	if (!rc)
		rc = check_ids(x, err);
	if (!rc && o->generation_config)
		rc = token_generation_config(x, err);
	if (rc)
		tokenizing_close(x);
	return rc;
}

void tokenizing_close(struct tokenizing *x)
{
	tokenizer_free(x->t);
	json_decref(x->vars);
	buf_free(&x->separator);
	memset(x, 0, sizeof(*x));
}

static json_t *message(const char *role, const char *text, size_t n)
{
	return json_pack("{s:s, s:s%}", "role", role, "content", text, n);
}

int token_render_text(struct tokenizing *x, const char *text, size_t n, struct buf *out, struct ds_err *err)
{
	const char *system = x->o->system;
	json_t *messages = json_array();
	int rc = 0;

	if (system && json_array_append_new(messages, message("system", system, strlen(system))))
		rc = err_set(err, DS_DATA, "the system prompt is not UTF-8");
	else if (json_array_append_new(messages, message("user", text, n)))
		rc = err_set(err, DS_DATA, "text is not UTF-8");
	if (!rc)
		rc = chat_render(x->t, messages, true, x->vars, out, err);
	json_decref(messages);
	return rc;
}

int token_from_text(struct tokenizing *x, const char *text, size_t n, struct ids *ids, struct ds_err *err)
{
	struct ids unused = { 0 };
	struct buf b = { 0 };
	int rc;

	if (!n)
		return err_set(err, DS_DATA, "the prompt is empty");
	if (!x->o->chat) {
		if (tokenizer_adds_bos(x->t) && !ids_add(ids, (uint32_t)tokenizer_bos(x->t)))
			return err_nomem(err, 64, "token ids");
		return tokenizer_encode(x->t, text, n, ids, err);
	}
	rc = tokenizer_encode(x->t, text, n, &unused, err); /* says where text is not UTF-8 */
	ids_free(&unused);
	if (!rc)
		rc = token_render_text(x, text, n, &b, err);
	if (!rc)
		rc = tokenizer_encode(x->t, b.p ? b.p : "", b.len, ids, err);
	buf_free(&b);
	return rc;
}
