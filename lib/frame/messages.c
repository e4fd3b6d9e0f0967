#include "frame/messages.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"

/* ---- shared reading of one key ---- */

static int bad_key(const struct frame *f, const char *key, const char *why, struct ds_err *err)
{
	return err_set(err, DS_DATA, "frame %llu (%s): '%s' %s", (unsigned long long)f->number,
		frame_type_name(f->type), key, why);
}

/* A whole number in [min, max]; absent: *v stays as it is unless `must`. */
static int get_uint(const struct frame *f, struct meta m, const char *key, bool must, uint64_t min, uint64_t max,
	uint64_t *v, struct ds_err *err)
{
	uint64_t u;

	switch (meta_uint(m, key, &u)) {
	case META_ABSENT:
		return must ? bad_key(f, key, "is missing", err) : 0;
	case META_TYPE:
		return bad_key(f, key, "is not a whole number", err);
	case META_OK:
		break;
	}
	if (u < min || u > max)
		return err_set(err, DS_DATA, "frame %llu (%s): '%s' is %llu, not within %llu to %llu",
			(unsigned long long)f->number, frame_type_name(f->type), key, (unsigned long long)u,
			(unsigned long long)min, (unsigned long long)max);
	*v = u;
	return 0;
}

static int get_real(const struct frame *f, struct meta m, const char *key, double min, double max, double *v,
	struct ds_err *err)
{
	double d;

	switch (meta_real(m, key, &d)) {
	case META_ABSENT:
		return 0;
	case META_TYPE:
		return bad_key(f, key, "is not a number", err);
	case META_OK:
		break;
	}
	if (!(d >= min && d <= max))
		return err_set(err, DS_DATA, "frame %llu (%s): '%s' is %g, not within %g to %g",
			(unsigned long long)f->number, frame_type_name(f->type), key, d, min, max);
	*v = d;
	return 0;
}

static int get_bool(const struct frame *f, struct meta m, const char *key, bool *v, struct ds_err *err)
{
	return meta_bool(m, key, v) == META_TYPE ? bad_key(f, key, "is not true or false", err) : 0;
}

static int get_cstr(const struct frame *f, const char *key, char *dst, size_t cap, struct ds_err *err)
{
	switch (meta_cstr(f->meta, key, dst, cap)) {
	case META_ABSENT:
		return bad_key(f, key, "is missing", err);
	case META_TYPE:
		return bad_key(f, key, "is not a text of acceptable length", err);
	case META_OK:
		break;
	}
	return 0;
}

/* ---- request ---- */

void request_put(struct meta_builder *b, const struct request *r)
{
	meta_put_cstr(b, "id", r->id);
	meta_put_map(b, "sampling");
	meta_put_real(b, "temperature", r->sampling.temperature);
	meta_put_real(b, "top_p", r->sampling.top_p);
	meta_put_uint(b, "top_k", r->sampling.top_k);
	meta_put_uint(b, "seed", r->sampling.seed);
	meta_put_bool(b, "logprobs", r->sampling.logprobs);
	meta_put_end(b);
	meta_put_uint(b, "max_tokens", r->max_tokens);
	meta_put_array(b, "stop_ids");
	for (size_t i = 0; i < r->stop_id_count; i++)
		meta_put_uint(b, NULL, r->stop_ids[i]);
	meta_put_end(b);
	meta_put_bool(b, "ignore_eos", r->ignore_eos);
	meta_put_uint(b, "arrival_ns", r->arrival_ns);
}

/* Keys of FRAMES that change the answer and that this version does not know how to honour. */
static int refuse_unsupported(const struct frame *f, struct meta sampling, struct ds_err *err)
{
	static const char *const keys[] = { "min_p", "penalties", "repetition_penalty", "presence_penalty",
		"frequency_penalty", "logit_bias", "top_logprobs", "n" };
	struct meta stops;
	size_t n;
	double v;

	for (size_t i = 0; i < ARRAY_LEN(keys); i++)
		if (meta_real(sampling, keys[i], &v) != META_ABSENT)
			return err_set(err, DS_DATA,
				"frame %llu (request): sampling '%s' is not supported by this version",
				(unsigned long long)f->number, keys[i]);
	if (meta_array(f->meta, "stop", &stops, &n) != META_ABSENT && n)
		return bad_key(f, "stop", "strings are not supported by this version; use 'stop_ids'", err);
	return 0;
}

static int get_sampling(const struct frame *f, struct sampling *s, struct ds_err *err)
{
	struct meta m;
	int rc;

	*s = (struct sampling){ .temperature = 0.0, .top_p = 1.0 };
	switch (meta_map(f->meta, "sampling", &m)) {
	case META_ABSENT:
		m = (struct meta){ 0 };
		break;
	case META_TYPE:
		return bad_key(f, "sampling", "is not a map", err);
	case META_OK:
		break;
	}
	if ((rc = get_real(f, m, "temperature", 0.0, 100.0, &s->temperature, err)) ||
	    (rc = get_real(f, m, "top_p", 0.0, 1.0, &s->top_p, err)) ||
	    (rc = get_uint(f, m, "top_k", false, 0, UINT32_MAX, &s->top_k, err)) ||
	    (rc = get_uint(f, m, "seed", false, 0, UINT64_MAX, &s->seed, err)) ||
	    (rc = get_bool(f, m, "logprobs", &s->logprobs, err)))
		return rc;
	if (s->top_p <= 0.0)
		return bad_key(f, "top_p", "is 0, it must be above 0 and at most 1", err);
	return refuse_unsupported(f, m, err);
}

static int get_stop_ids(const struct frame *f, struct request *r, struct ds_err *err)
{
	struct meta a;
	uint64_t id;
	size_t n;

	switch (meta_array(f->meta, "stop_ids", &a, &n)) {
	case META_ABSENT:
		return 0;
	case META_TYPE:
		return bad_key(f, "stop_ids", "is not an array", err);
	case META_OK:
		break;
	}
	if (n > REQUEST_MAX_STOP_IDS)
		return bad_key(f, "stop_ids", "has more than 16 entries", err);
	for (size_t i = 0; i < n; i++) {
		if (meta_at_uint(a, i, &id) != META_OK || id > UINT32_MAX)
			return bad_key(f, "stop_ids", "holds something that is no token id", err);
		r->stop_ids[i] = (uint32_t)id;
	}
	r->stop_id_count = n;
	return 0;
}

int request_get(const struct frame *f, struct request *r, struct ds_err *err)
{
	int rc;

	memset(r, 0, sizeof(*r));
	if ((rc = get_cstr(f, "id", r->id, sizeof(r->id), err)) || (rc = get_sampling(f, &r->sampling, err)) ||
	    (rc = get_uint(f, f->meta, "max_tokens", false, 0, UINT32_MAX, &r->max_tokens, err)) ||
	    (rc = get_stop_ids(f, r, err)) || (rc = get_bool(f, f->meta, "ignore_eos", &r->ignore_eos, err)) ||
	    (rc = get_uint(f, f->meta, "arrival_ns", false, 0, UINT64_MAX, &r->arrival_ns, err)))
		return rc;
	if (!r->id[0])
		return bad_key(f, "id", "is empty", err);
	return 0;
}

int request_tokens(const struct frame *f, const uint32_t **ids, size_t *n, struct ds_err *err)
{
	struct frame_tensor t;
	int rc = frame_tensor_get(f, "tokens", &t, err);

	if (rc)
		return rc;
	if (t.type != DT_U32 || t.ndim != 1 || t.shape[0] == 0 || t.offset % sizeof(uint32_t))
		return bad_key(f, "tokens", "is not a row of at least one U32", err);
	*ids = (const uint32_t *)(const void *)(f->data + t.offset);
	*n = (size_t)t.shape[0];
	return 0;
}

/* ---- kv ---- */

void kv_block_put(struct meta_builder *b, const struct kv_block *k, enum dtype type, uint64_t layers, uint64_t block,
	uint64_t dim)
{
	uint64_t shape[3] = { layers, block, dim };

	meta_put_uint(b, "first", k->first);
	meta_put_uint(b, "count", k->count);
	meta_put_tensor(b, "kv", type, "layer,token,dim", shape, 3, 0, NULL);
}

int kv_block_get(const struct frame *f, struct kv_block *k, struct frame_tensor *t, struct ds_err *err)
{
	int rc;

	if ((rc = get_uint(f, f->meta, "first", true, 0, UINT32_MAX, &k->first, err)) ||
	    (rc = get_uint(f, f->meta, "count", true, 1, UINT32_MAX, &k->count, err)) ||
	    (rc = frame_tensor_get(f, "kv", t, err)))
		return rc;
	if (t->ndim != 3 || k->count > t->shape[1])
		return bad_key(f, "kv", "is not [layer, token, dim] with at least 'count' tokens", err);
	return 0;
}

/* ---- prefilled, token, done, error ---- */

static void put_usage(struct meta_builder *b, const struct usage *u)
{
	meta_put_map(b, "usage");
	meta_put_uint(b, "prompt", u->prompt);
	meta_put_uint(b, "hit", u->hit);
	meta_put_uint(b, "miss", u->miss);
	meta_put_uint(b, "completion", u->completion);
	meta_put_end(b);
}

static int get_usage(const struct frame *f, struct usage *u, struct ds_err *err)
{
	struct meta m;
	int rc;

	if (meta_map(f->meta, "usage", &m) != META_OK)
		return bad_key(f, "usage", "is missing or not a map", err);
	if ((rc = get_uint(f, m, "prompt", true, 0, UINT32_MAX, &u->prompt, err)) ||
	    (rc = get_uint(f, m, "hit", false, 0, UINT32_MAX, &u->hit, err)) ||
	    (rc = get_uint(f, m, "miss", false, 0, UINT32_MAX, &u->miss, err)))
		return rc;
	return get_uint(f, m, "completion", false, 0, UINT32_MAX, &u->completion, err);
}

void prefilled_put(struct meta_builder *b, const struct prefilled *p)
{
	meta_put_uint(b, "position", p->position);
	meta_put_uint(b, "token", p->token);
	meta_put_real(b, "logprob", p->logprob);
	put_usage(b, &p->usage);
	meta_put_uint(b, "prefill_ns", p->prefill_ns);
}

int prefilled_get(const struct frame *f, struct prefilled *p, struct ds_err *err)
{
	uint64_t token = 0;
	int rc;

	memset(p, 0, sizeof(*p));
	if ((rc = get_uint(f, f->meta, "position", true, 1, UINT32_MAX, &p->position, err)) ||
	    (rc = get_uint(f, f->meta, "token", true, 0, UINT32_MAX, &token, err)) ||
	    (rc = get_real(f, f->meta, "logprob", -INFINITY, 0.0, &p->logprob, err)) ||
	    (rc = get_usage(f, &p->usage, err)))
		return rc;
	p->token = (uint32_t)token;
	return get_uint(f, f->meta, "prefill_ns", false, 0, UINT64_MAX, &p->prefill_ns, err);
}

void token_put(struct meta_builder *b, const struct token *t)
{
	meta_put_uint(b, "index", t->index);
	meta_put_uint(b, "id", t->id);
	if (t->has_logprob)
		meta_put_real(b, "logprob", t->logprob);
	meta_put_uint(b, "t_ns", t->t_ns);
}

int token_get(const struct frame *f, struct token *t, struct ds_err *err)
{
	uint64_t id = 0;
	int rc;

	memset(t, 0, sizeof(*t));
	if ((rc = get_uint(f, f->meta, "index", true, 0, UINT32_MAX, &t->index, err)) ||
	    (rc = get_uint(f, f->meta, "id", true, 0, UINT32_MAX, &id, err)) ||
	    (rc = get_uint(f, f->meta, "t_ns", false, 0, UINT64_MAX, &t->t_ns, err)))
		return rc;
	t->id = (uint32_t)id;
	t->has_logprob = meta_real(f->meta, "logprob", &t->logprob) == META_OK;
	return 0;
}

void done_put(struct meta_builder *b, const struct done *d)
{
	meta_put_cstr(b, "id", d->id);
	meta_put_cstr(b, "finish_reason", d->reason);
	put_usage(b, &d->usage);
	meta_put_uint(b, "prefill_ns", d->prefill_ns);
	meta_put_uint(b, "decode_ns", d->decode_ns);
}

int done_get(const struct frame *f, struct done *d, struct ds_err *err)
{
	int rc;

	memset(d, 0, sizeof(*d));
	if ((rc = get_cstr(f, "id", d->id, sizeof(d->id), err)) ||
	    (rc = get_cstr(f, "finish_reason", d->reason, sizeof(d->reason), err)) ||
		(rc = get_usage(f, &d->usage, err)) ||
	    (rc = get_uint(f, f->meta, "prefill_ns", false, 0, UINT64_MAX, &d->prefill_ns, err)))
		return rc;
	return get_uint(f, f->meta, "decode_ns", false, 0, UINT64_MAX, &d->decode_ns, err);
}

void error_put(struct meta_builder *b, const struct error_message *e)
{
	meta_put_uint(b, "code", e->code);
	if (e->id[0])
		meta_put_cstr(b, "id", e->id);
	meta_put_cstr(b, "message", e->text);
	meta_put_bool(b, "retryable", e->retryable);
}

int error_get(const struct frame *f, struct error_message *e, struct ds_err *err)
{
	int rc;

	memset(e, 0, sizeof(*e));
	if ((rc = get_uint(f, f->meta, "code", true, 1, 255, &e->code, err)) ||
	    (rc = get_cstr(f, "message", e->text, sizeof(e->text), err)))
		return rc;
	if (meta_cstr(f->meta, "id", e->id, sizeof(e->id)) == META_TYPE)
		return bad_key(f, "id", "is not a text of acceptable length", err);
	return get_bool(f, f->meta, "retryable", &e->retryable, err);
}
