/* A ds-kvstore behind a unix or TCP socket: a connection for each session. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "frame/hello.h"
#include "store/remote_impl.h"

static void keys_iov(struct iovec *iov, const struct store_key *keys, size_t n)
{
	*iov = (struct iovec){ (void *)(uintptr_t)keys, n * sizeof *keys };
}

int remote_answer(struct remote_session *ss, enum store_op op, size_t n, bool each, struct store_answer *a,
	struct ds_err *err)
{
	enum frame_event ev = FRAME_HEAD;
	enum store_op is = STORE_OP_NONE;
	struct frame *f;
	int rc = 0;

	while (!rc && ev != FRAME_BODY)
		rc = wire_next(ss, &ev, &f, err);
	if (rc)
		return rc;
	rc = store_op_get(f, &is, err);
	if (!rc && is != STORE_OP_OK)
		rc = err_set(err, DS_PROTO, "'%s' to a request '%s'", store_op_name(is), store_op_name(op));
	if (!rc)
		rc = store_answer_get(f, op, n, each, a, err);
	return rc ? wire_nonsense(ss, err) : 0;
}

/* A request about keys, and its answer. */
static int call(struct remote_session *ss, const struct store_request *q, const struct store_key *keys,
	struct store_answer *a, struct ds_err *err)
{
	struct iovec iov;
	int rc;

	keys_iov(&iov, keys, q->n);
	meta_reset(ss->meta);
	store_request_put(ss->meta, q);
	rc = wire_ask(ss, &iov, q->n != 0, false, err);
	return rc ? rc : remote_answer(ss, q->op, q->n, q->each, a, err);
}

static int remote_has(struct store_session *base, const struct store_key *keys, size_t n, uint8_t *here,
	size_t *prefix, struct ds_err *err)
{
	const struct store_request q = { .op = STORE_OP_HAS, .n = n, .each = here != NULL };
	struct store_answer a;
	int rc = call((struct remote_session *)base, &q, keys, &a, err);

	if (rc)
		return rc;
	*prefix = (size_t)a.prefix;
	for (size_t i = 0; here && i < n; i++)
		here[i] = a.here[i] != 0;
	return 0;
}

static int remote_del(struct store_session *base, const struct store_key *key, bool *was, struct ds_err *err)
{
	const struct store_request q = { .op = STORE_OP_DEL, .n = 1 };
	struct store_answer a;
	int rc = call((struct remote_session *)base, &q, key, &a, err);

	if (!rc)
		*was = a.was;
	return rc;
}

static int remote_pin(struct store_session *base, const struct store_key *keys, size_t n, bool pin,
	struct ds_err *err)
{
	const struct store_request q = { .op = pin ? STORE_OP_PIN : STORE_OP_UNPIN, .n = n };
	struct store_answer a;

	return call((struct remote_session *)base, &q, keys, &a, err);
}

static int remote_stat(struct store_session *base, struct store_stat *st, struct ds_err *err)
{
	const struct store_request q = { .op = STORE_OP_STAT };
	struct store_answer a;
	int rc = call((struct remote_session *)base, &q, NULL, &a, err);

	memset(st, 0, sizeof *st);
	for (const struct store_counter *c = store_counters; !rc && c->name; c++) {
		uint64_t v = 0;

		if (meta_uint(a.counters, c->name, &v) == META_OK)
			memcpy((uint8_t *)st + c->offset, &v, sizeof v);
	}
	return rc;
}

void remote_doubt(struct store_session *base, const struct store_key *key)
{
	const struct store_request q = { .op = STORE_OP_DOUBT, .n = 1 };
	struct store_answer a;
	struct ds_err err; /* nobody depends on it */

	call((struct remote_session *)base, &q, key, &a, &err);
}

/* ---- opening ---- */

/* "unix:PATH?bytes": no descriptors. */
static int open_at(struct store **out, const struct store_ops *ops, const char *rest, const struct store_options *o,
	struct ds_err *err)
{
	static const char bytes[] = "?bytes";
	struct buf text = { 0 };
	struct remote *r = mem_calloc(1, sizeof *r);
	bool plain;
	int rc;

	*out = NULL;
	buf_printf(&text, "%s%s", ops->scheme, rest);
	if (!r || text.nomem) {
		rc = err_nomem(err, sizeof *r, "a store");
		goto out;
	}
	plain = text.len >= sizeof bytes - 1 && strcmp(text.p + text.len - (sizeof bytes - 1), bytes) == 0;
	if (plain)
		text.p[text.len - (sizeof bytes - 1)] = 0;
	rc = strchr(text.p, '?') ? err_set(err, DS_USAGE, "'%s': what follows '?' may be 'bytes'", text.p) :
		addr_parse(text.p, &r->addr, err);
	if (rc)
		goto out;
	r->base.ops = ops;
	r->base.o = *o;
	r->fds = r->addr.kind == ADDR_UNIX && !plain;
	pthread_mutex_init(&r->lock, NULL);
	*out = &r->base;
	r = NULL;
out:
	free(r);
	buf_free(&text);
	return rc;
}

static int open_unix(struct store **s, const char *rest, const struct store_options *o, struct ds_err *err)
{
	return open_at(s, &store_remote_unix, rest, o, err);
}

static int open_tcp(struct store **s, const char *rest, const struct store_options *o, struct ds_err *err)
{
	return open_at(s, &store_remote_tcp, rest, o, err);
}

static void remote_close(struct store *s)
{
	struct remote *r = (struct remote *)s;

	pthread_mutex_destroy(&r->lock);
	free(r);
}

static void remote_end(struct store_session *base)
{
	struct remote_session *ss = (struct remote_session *)base;

	wire_end(ss);
	remote_shared_free(ss);
	frame_writer_free(ss->out);
	frame_parser_free(ss->parser);
	meta_free(ss->meta);
	free(ss->front);
	free(ss->coded);
	free(ss->plain);
	free(ss);
}

static int remote_begin(struct store_session **out, struct store *s, struct ds_err *err)
{
	struct remote_session *ss = mem_calloc(1, sizeof *ss);
	int rc;

	*out = NULL;
	if (!ss)
		return err_nomem(err, sizeof *ss, "a session");
	ss->base.store = s;
	ss->r = (struct remote *)s;
	ss->fd = ss->shared_fd = -1;
	for (size_t i = 0; i < STORE_MESSAGE_SEGMENTS; i++)
		ss->files[i] = -1;
	ss->meta = meta_new();
	rc = ss->meta ? frame_writer_new(&ss->out, -1, ss->r->addr.text, err) : err_nomem(err, 64, "a session");
	if (!rc)
		rc = frame_parser_new(&ss->parser, err);
	if (rc)
		remote_end(&ss->base);
	else
		*out = &ss->base;
	return rc;
}

#define REMOTE_OPS(name, open_fn) { .scheme = name, .open = open_fn, .close = remote_close, .begin = remote_begin, \
	.end = remote_end, .has = remote_has, .get = remote_get, .put = remote_put, .del = remote_del, \
	.pin = remote_pin, .stat = remote_stat, .doubt = remote_doubt }

const struct store_ops store_remote_unix = REMOTE_OPS("unix:", open_unix);
const struct store_ops store_remote_tcp = REMOTE_OPS("tcp:", open_tcp);
