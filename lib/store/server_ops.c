/* What requests do. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "store/server_impl.h"

/* The ok frame that is in c->meta. */
static int done(struct store_client *c, uint64_t stream, struct ds_err *err)
{
	return client_send(c, stream, NULL, 0, err);
}

void client_begin_ok(struct store_client *c)
{
	meta_reset(c->meta);
	meta_put_cstr(c->meta, "op", store_op_name(STORE_OP_OK));
}

int client_ok(struct store_client *c, uint64_t stream, struct ds_err *err)
{
	client_begin_ok(c);
	return done(c, stream, err);
}

static const struct store_key *keys_of(const struct store_request *q)
{
	return (const struct store_key *)q->keys;
}

static int do_has(struct store_client *c, uint64_t stream, const struct store_request *q, struct ds_err *err,
	struct ds_err *why)
{
	struct iovec iov;
	size_t prefix;

	if (q->each && !c->here && !(c->here = mem_array(STORE_KEYS_MAX, 1)))
		return err_nomem(why, STORE_KEYS_MAX, "an answer");
	if (store_has(c->ss, keys_of(q), q->n, q->each ? c->here : NULL, &prefix, why))
		return why->code;
	meta_reset(c->meta);
	store_answer_has(c->meta, prefix, q->each ? c->here : NULL, q->n);
	iov = (struct iovec){ c->here, q->n };
	return client_send(c, stream, &iov, q->each, err);
}

static int do_del(struct store_client *c, uint64_t stream, const struct store_request *q, struct ds_err *err,
	struct ds_err *why)
{
	bool was;

	if (store_del(c->ss, keys_of(q), &was, why))
		return why->code;
	client_begin_ok(c);
	meta_put_bool(c->meta, "was", was);
	return done(c, stream, err);
}

static int do_pin(struct store_client *c, uint64_t stream, const struct store_request *q, struct ds_err *err,
	struct ds_err *why)
{
	if (store_pin(c->ss, keys_of(q), q->n, q->op == STORE_OP_PIN, why))
		return why->code;
	return client_ok(c, stream, err);
}

static int do_doubt(struct store_client *c, uint64_t stream, const struct store_request *q, struct ds_err *err)
{
	const struct store_ops *ops = c->sv->store->ops;

	for (size_t i = 0; i < q->n && ops->doubt; i++)
		ops->doubt(c->ss, keys_of(q) + i);
	return client_ok(c, stream, err);
}

static int do_stat(struct store_client *c, uint64_t stream, struct ds_err *err, struct ds_err *why)
{
	struct store_stat st;

	if (store_stat(c->ss, &st, why))
		return why->code;
	client_begin_ok(c);
	meta_put_map(c->meta, "counters");
	for (const struct store_counter *k = store_counters; k->name; k++) {
		uint64_t v;

		memcpy(&v, (const uint8_t *)&st + k->offset, sizeof v);
		meta_put_uint(c->meta, k->name, v);
	}
	meta_put_end(c->meta);
	return done(c, stream, err);
}

/* ---- all of them ---- */

/* why: of the request, which is refused; err: of the connection. */
static int run(struct store_client *c, const struct frame *f, enum store_op op, struct ds_err *err, struct ds_err *why)
{
	struct store_request q;

	if (op == STORE_OP_PUT)
		return client_put(c, f, err, why);
	if (store_request_get(f, &q, why))
		return why->code;
	switch (op) {
	case STORE_OP_HAS: return do_has(c, f->stream, &q, err, why);
	case STORE_OP_GET: return client_get(c, f->stream, &q, err);
	case STORE_OP_DEL: return do_del(c, f->stream, &q, err, why);
	case STORE_OP_PIN:
	case STORE_OP_UNPIN: return do_pin(c, f->stream, &q, err, why);
	case STORE_OP_STAT: return do_stat(c, f->stream, err, why);
	case STORE_OP_MEMORY: return client_memory(c, f->stream, err, why);
	default: return do_doubt(c, f->stream, &q, err);
	}
}

int client_request(struct store_client *c, const struct frame *f, enum store_op op, struct ds_err *err)
{
	struct ds_err why = { 0 };
	int rc = run(c, f, op, err, &why);

	if (!rc || !why.code)
		return rc;
	atomic_fetch_add(&c->sv->counts.op[op].errors, 1);
	return client_refuse(c, f->stream, &why, err);
}
