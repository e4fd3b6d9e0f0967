/* What the Redis front does with values: reading, and what is asked of them. */
#include <string.h>

#include "base/time.h"
#include "store/resp_impl.h"

enum { GATHERED = 4 << 10 }; /* values up to this are sent together with what follows */

#define NAME_SEED 0x6473206e616d6573ull /* apart from the keys of KV blocks */

struct store_key resp_key(struct resp_text name)
{
	XXH128_canonical_t c;
	struct store_key k;

	XXH128_canonicalFromHash(&c, XXH3_128bits_withSeed(name.p, name.n, NAME_SEED));
	memcpy(k.b, c.digest, sizeof k.b);
	return k;
}

bool resp_name(struct resp_conn *c, size_t i, struct resp_text *name)
{
	*name = resp_arg(c, i);
	if (name->n <= RESP_NAME_MAX)
		return true;
	resp_error(c, "ERR the name is longer than %d bytes", RESP_NAME_MAX);
	return false;
}

void resp_session_deadline(struct resp_conn *c)
{
	int64_t ns = c->front->o.store_ns;

	store_deadline(c->ss, ns ? time_mono_ns() + ns : 0);
}

/* OOM: as Redis says it of a command that stores; TRYAGAIN as its clusters do. */
void resp_store_error(struct resp_conn *c, const struct ds_err *err)
{
	resp_error(c, "%s %s", err->code == DS_TEMP ? "TRYAGAIN" : "ERR", err->text);
}

/* ---- looking for a name ---- */

static void *place(void *ctx, size_t i, const struct store_item *item)
{
	struct resp_seek *s = ctx;
	const uint8_t *p;
	size_t n;

	(void)i;
	if (meta_bin(item->meta, "name", &p, &n) != META_OK || n != s->name.n || (n && memcmp(p, s->name.p, n) != 0)) {
		s->c->front->collisions++;
		s->other = true;
		return NULL;
	}
	s->found = true;
	s->size = item->size;
	s->expires_ns = item->expires_ns;
	if (!s->payload)
		return NULL;
	if (s->size <= RESP_SMALL)
		return s->data = s->c->small, s->c->small;
	s->busy = !resp_take(s->c, s->size, &s->b);
	return s->data = s->b.p, s->b.p;
}

static bool done(void *ctx, size_t i)
{
	struct resp_seek *s = ctx;

	(void)i;
	s->read = true;
	return true;
}

int resp_seek(struct resp_conn *c, struct resp_text name, bool payload, struct resp_seek *s, struct ds_err *err)
{
	struct store_key key = resp_key(name);
	struct store_sink sink = { s, place, done };
	size_t got;
	int rc;

	*s = (struct resp_seek){ .c = c, .name = name, .payload = payload };
	rc = store_get(c->ss, &key, 1, &sink, &got, err);
	if (rc || (payload && !s->read)) {
		store_pool_give(c->front->pool, &s->b);
		s->found = false;
	}
	return rc;
}

int resp_send_bytes(struct resp_conn *c, const uint8_t *p, size_t n, struct ds_err *err)
{
	struct iovec iov[2] = { { (void *)(uintptr_t)p, n }, { (void *)(uintptr_t)"\r\n", 2 } };

	resp_allow(c, n);
	if (n <= GATHERED) {
		resp_add_bulk(&c->r, p, n);
		return 0;
	}
	resp_add_head(&c->r, '$', (int64_t)n);
	return resp_send(&c->r, iov, 2, err);
}

static int get_one(struct resp_conn *c, size_t i, struct ds_err *err)
{
	struct resp_text name;
	struct resp_seek s;
	int rc = 0;

	if (!resp_name(c, i, &name) || (c->parser && resp_fetch(c, name, &rc, err)))
		return rc;
	resp_session_deadline(c);
	if (resp_seek(c, name, true, &s, err))
		resp_store_error(c, err);
	else if (s.busy)
		resp_error(c, "TRYAGAIN too many values are on their way");
	else if (!s.found)
		resp_nil(c);
	else
		rc = resp_send_bytes(c, s.data, s.size, err);
	store_pool_give(c->front->pool, &s.b);
	return rc;
}

int resp_do_get(struct resp_conn *c, struct ds_err *err)
{
	return get_one(c, 1, err);
}

int resp_do_mget(struct resp_conn *c, struct ds_err *err)
{
	int rc = 0;

	resp_add_head(&c->r, '*', (int64_t)c->argc - 1);
	for (size_t i = 1; !rc && i < c->argc; i++) {
		resp_turn(c, i);
		rc = get_one(c, i, err);
	}
	return rc;
}

/* ---- about values ---- */

/* False: an error was replied. */
static bool look(struct resp_conn *c, size_t i, struct resp_seek *s, struct ds_err *err)
{
	struct resp_text name;

	if (!resp_name(c, i, &name))
		return false;
	resp_session_deadline(c);
	if (!resp_seek(c, name, false, s, err))
		return true;
	resp_store_error(c, err);
	return false;
}

int resp_do_exists(struct resp_conn *c, struct ds_err *err)
{
	struct resp_seek s;
	int64_t n = 0;

	for (size_t i = 1; i < c->argc; i++) {
		resp_turn(c, i);
		if (!look(c, i, &s, err))
			return 0;
		n += s.found;
	}
	resp_add_head(&c->r, ':', n);
	return 0;
}

int resp_do_strlen(struct resp_conn *c, struct ds_err *err)
{
	struct resp_seek s;

	if (look(c, 1, &s, err))
		resp_add_head(&c->r, ':', s.found ? (int64_t)s.size : 0);
	return 0;
}

int resp_do_type(struct resp_conn *c, struct ds_err *err)
{
	struct resp_seek s;

	if (look(c, 1, &s, err))
		resp_add_cstr(&c->r, s.found ? "+string\r\n" : "+none\r\n");
	return 0;
}

static int ttl(struct resp_conn *c, uint64_t unit, struct ds_err *err)
{
	struct resp_seek s;
	uint64_t now = (uint64_t)time_wall_ns();

	if (!look(c, 1, &s, err))
		return 0;
	if (!s.found || !s.expires_ns)
		resp_add_head(&c->r, ':', s.found ? -1 : -2);
	else /* rounded as Redis does */
		resp_add_head(&c->r, ':', s.expires_ns <= now ? 0 :
			(int64_t)((s.expires_ns - now) / unit + ((s.expires_ns - now) % unit >= unit / 2)));
	return 0;
}

int resp_do_ttl(struct resp_conn *c, struct ds_err *err)
{
	return ttl(c, 1000000000, err);
}

int resp_do_pttl(struct resp_conn *c, struct ds_err *err)
{
	return ttl(c, 1000000, err);
}

/* Even one that is not seen: another process may have put it just now.  False: an error was replied. */
static bool delete_one(struct resp_conn *c, size_t i, int64_t *n, struct ds_err *err)
{
	struct store_key key = resp_key(resp_arg(c, i));
	struct resp_seek s;
	bool was = false;

	if (!look(c, i, &s, err))
		return false;
	if (!s.other && store_del(c->ss, &key, &was, err)) {
		resp_store_error(c, err);
		return false;
	}
	*n += was;
	return true;
}

int resp_do_del(struct resp_conn *c, struct ds_err *err)
{
	bool fine = true;
	int64_t n = 0;

	for (size_t i = 1; i < c->argc && fine; i++) {
		resp_turn(c, i);
		fine = delete_one(c, i, &n, err);
	}
	if (!fine)
		return 0;
	resp_add_head(&c->r, ':', n);
	return 0;
}
