/* The request: what is asked, and how its tokens are to be chosen. */
#include <string.h>

#include "base/mem.h"
#include "frame/messages_impl.h"

enum { BIAS_MAX = 100, REPETITION_MAX = 10 };

void request_defaults(struct request *r)
{
	memset(r, 0, sizeof(*r));
	r->sampling.top_p = 1.0;
	r->sampling.repetition = 1.0;
	r->n = 1;
}

bool request_add_bias(struct sampling *s, uint32_t id, float bias)
{
	size_t i = s->bias_count;

	while (i && s->bias[i - 1].id > id)
		i--;
	if ((i && s->bias[i - 1].id == id) || s->bias_count == REQUEST_MAX_BIAS)
		return false;
	memmove(&s->bias[i + 1], &s->bias[i], (s->bias_count - i) * sizeof(*s->bias));
	s->bias[i] = (struct logit_bias){ id, bias };
	s->bias_count++;
	return true;
}

/* ---- writing ---- */

static void put_unless(struct meta_builder *b, const char *key, double v, double neutral)
{
	if (v < neutral || v > neutral)
		meta_put_real(b, key, v);
}

static void put_bias(struct meta_builder *b, const struct sampling *s)
{
	if (!s->bias_count)
		return;
	meta_put_array(b, "logit_bias");
	for (size_t i = 0; i < s->bias_count; i++) {
		meta_put_array(b, NULL);
		meta_put_uint(b, NULL, s->bias[i].id);
		meta_put_real(b, NULL, (double)s->bias[i].bias);
		meta_put_end(b);
	}
	meta_put_end(b);
}

static void put_sampling(struct meta_builder *b, const struct sampling *s)
{
	meta_put_map(b, "sampling");
	meta_put_real(b, "temperature", s->temperature);
	meta_put_real(b, "top_p", s->top_p);
	meta_put_uint(b, "top_k", s->top_k);
	put_unless(b, "min_p", s->min_p, 0.0);
	put_unless(b, "repetition_penalty", s->repetition, 1.0);
	put_unless(b, "presence_penalty", s->presence, 0.0);
	put_unless(b, "frequency_penalty", s->frequency, 0.0);
	put_bias(b, s);
	meta_put_uint(b, "seed", s->seed);
	meta_put_bool(b, "logprobs", s->logprobs);
	if (s->top_logprobs)
		meta_put_uint(b, "top_logprobs", s->top_logprobs);
	meta_put_end(b);
}

void request_put(struct meta_builder *b, const struct request *r)
{
	meta_put_cstr(b, "id", r->id);
	put_sampling(b, &r->sampling);
	meta_put_uint(b, "max_tokens", r->max_tokens);
	meta_put_array(b, "stop_ids");
	for (size_t i = 0; i < r->stop_id_count; i++)
		meta_put_uint(b, NULL, r->stop_ids[i]);
	meta_put_end(b);
	if (r->stop_count) {
		meta_put_array(b, "stop");
		for (size_t i = 0; i < r->stop_count; i++)
			meta_put_str(b, NULL, r->stops[i].p, r->stops[i].n);
		meta_put_end(b);
	}
	meta_put_bool(b, "ignore_eos", r->ignore_eos);
	if (r->n != 1)
		meta_put_uint(b, "n", r->n);
	meta_put_uint(b, "arrival_ns", r->arrival_ns);
}

/* ---- reading ---- */

static int get_bias(const struct frame *f, struct meta sampling, struct sampling *s, struct ds_err *err)
{
	struct meta all, pair;
	size_t n, two;
	int rc = message_array(f, sampling, "logit_bias", REQUEST_MAX_BIAS, &all, &n, err);

	for (size_t i = 0; !rc && i < n; i++) {
		uint64_t id;
		double bias;

		if (meta_at_array(all, i, &pair, &two) != META_OK || two != 2 ||
		    meta_at_uint(pair, 0, &id) != META_OK || id > UINT32_MAX || meta_at_real(pair, 1, &bias) != META_OK)
			return message_bad(f, "logit_bias", err, "holds something that is no [token id, number]");
		if (!(bias >= -BIAS_MAX && bias <= BIAS_MAX))
			return message_bad(f, "logit_bias", err, "of token %llu is %g, not within " "-%d to %d",
				(unsigned long long)id, bias, BIAS_MAX, BIAS_MAX);
		if (!request_add_bias(s, (uint32_t)id, (float)bias))
			return message_bad(f, "logit_bias", err, "has token %u twice", (unsigned)id);
	}
	return rc;
}

static int get_sampling(const struct frame *f, struct sampling *s, struct ds_err *err)
{
	struct meta m;
	int rc;

	if ((rc = message_map(f, "sampling", &m, err)) ||
	    (rc = message_real(f, m, "temperature", 0.0, 100.0, &s->temperature, err)) ||
	    (rc = message_real(f, m, "top_p", 0.0, 1.0, &s->top_p, err)) ||
	    (rc = message_uint(f, m, "top_k", false, 0, UINT32_MAX, &s->top_k, err)) ||
	    (rc = message_real(f, m, "min_p", 0.0, 1.0, &s->min_p, err)) ||
	    (rc = message_real(f, m, "repetition_penalty", 0.0, REPETITION_MAX, &s->repetition, err)) ||
	    (rc = message_real(f, m, "presence_penalty", -2.0, 2.0, &s->presence, err)) ||
	    (rc = message_real(f, m, "frequency_penalty", -2.0, 2.0, &s->frequency, err)) ||
	    (rc = get_bias(f, m, s, err)) ||
	    (rc = message_uint(f, m, "seed", false, 0, UINT64_MAX, &s->seed, err)) ||
	    (rc = message_bool(f, m, "logprobs", &s->logprobs, err)) ||
	    (rc = message_uint(f, m, "top_logprobs", false, 0, REQUEST_MAX_LOGPROBS, &s->top_logprobs, err)))
		return rc;
	if (s->top_p <= 0.0)
		return message_bad(f, "top_p", err, "is 0, it must be above 0 and at most 1");
	if (s->repetition <= 0.0)
		return message_bad(f, "repetition_penalty", err, "is 0, it must be above 0 and at most 10");
	s->logprobs |= s->top_logprobs > 0;
	return 0;
}

static int get_stop_ids(const struct frame *f, struct request *r, struct ds_err *err)
{
	struct meta a;
	uint64_t id;
	size_t n;
	int rc = message_array(f, f->meta, "stop_ids", REQUEST_MAX_STOP_IDS, &a, &n, err);

	if (rc)
		return rc;
	for (size_t i = 0; i < n; i++) {
		if (meta_at_uint(a, i, &id) != META_OK || id > UINT32_MAX)
			return message_bad(f, "stop_ids", err, "holds something that is no token id");
		r->stop_ids[i] = (uint32_t)id;
	}
	r->stop_id_count = n;
	return 0;
}

static int get_stops(const struct frame *f, struct request *r, struct ds_err *err)
{
	struct meta a;
	const char *p;
	size_t n, len;
	int rc = message_array(f, f->meta, "stop", REQUEST_MAX_STOPS, &a, &n, err);

	if (rc)
		return rc;
	for (size_t i = 0; i < n; i++) {
		if (meta_at_str(a, i, &p, &len) != META_OK)
			return message_bad(f, "stop", err, "holds something that is no text");
		if (!len || len > REQUEST_STOP_BYTES)
			return message_bad(f, "stop", err, "has a text of %zu bytes, not of 1 to %d", len,
				REQUEST_STOP_BYTES);
		r->stops[i].n = len;
		memcpy(r->stops[i].p, p, len);
	}
	r->stop_count = n;
	return 0;
}

int request_get(const struct frame *f, struct request *r, struct ds_err *err)
{
	int rc;

	request_defaults(r);
	if ((rc = message_cstr(f, "id", true, r->id, sizeof(r->id), err)) ||
	    (rc = get_sampling(f, &r->sampling, err)) ||
	    (rc = message_uint(f, f->meta, "max_tokens", false, 0, UINT32_MAX, &r->max_tokens, err)) ||
	    (rc = get_stop_ids(f, r, err)) || (rc = get_stops(f, r, err)) ||
	    (rc = message_bool(f, f->meta, "ignore_eos", &r->ignore_eos, err)) ||
	    (rc = message_uint(f, f->meta, "n", false, 1, REQUEST_MAX_N, &r->n, err)) ||
	    (rc = message_uint(f, f->meta, "arrival_ns", false, 0, UINT64_MAX, &r->arrival_ns, err)))
		return rc;
	if (!r->id[0])
		return message_bad(f, "id", err, "is empty");
	return 0;
}

int request_tokens(const struct frame *f, const uint32_t **ids, size_t *n, struct ds_err *err)
{
	struct frame_tensor t;
	int rc = frame_tensor_get(f, "tokens", &t, err);

	if (rc)
		return rc;
	if (t.type != DT_U32 || t.ndim != 1 || t.shape[0] == 0 || t.offset % sizeof(uint32_t))
		return message_bad(f, "tokens", err, "is not a row of at least one U32");
	*ids = (const uint32_t *)(const void *)(f->data + t.offset);
	*n = (size_t)t.shape[0];
	return 0;
}
