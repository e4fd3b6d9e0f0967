#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/time.h"
#include "net/addr.h"
#include "store/resp_impl.h"
#include "store/store_impl.h"

enum {
	ROUNDS = 8,     /* reads of one connection before others have their turn */
	CACHE_PART = 8, /* of the memory: half of the small ones' share (pool.h) */
};

#define STALL_NS ((int64_t)30000000000)
#define MEMORY ((uint64_t)1 << 30)

/* A part of the memory; the largest value must have room beside it in the large ones' share (pool.h). */
static uint64_t cache_limit(const struct resp_options *o)
{
	uint64_t rest = o->memory / 2 > o->max_value ? o->memory / 2 - o->max_value : 0;

	return rest < o->memory / CACHE_PART ? rest : o->memory / CACHE_PART;
}

static void close_own(struct resp_front *f)
{
	if (f->pool == &f->own)
		store_pool_close(&f->own);
}

int resp_front_new(struct resp_front **out, struct store *s, const struct resp_options *o, struct ds_err *err)
{
	struct resp_front *f = mem_calloc(1, sizeof *f);
	int rc;

	*out = NULL;
	if (!f)
		return err_nomem(err, sizeof *f, "the Redis front");
	f->store = s;
	if (o)
		f->o = *o;
	if (!f->o.max_value || f->o.max_value > RESP_BULK_MAX)
		f->o.max_value = f->o.max_value ? RESP_BULK_MAX : FRAME_MAX_DEFAULT;
	if (!f->o.memory)
		f->o.memory = MEMORY;
	if (f->o.memory < f->o.max_value)
		f->o.memory = f->o.max_value;
	if (!f->o.stall_ns)
		f->o.stall_ns = STALL_NS;
	f->began_ns = time_mono_ns();
	f->pool = f->o.pool ? f->o.pool : &f->own;
	rc = f->o.pool ? 0 : store_pool_open(&f->own, f->o.memory, err);
	if (!rc && s->ops->find) { /* it does not wait for another process */
		f->cache = resp_cache_new(f->pool, cache_limit(&f->o));
		rc = resp_workers_open(f, err);
		if (rc) {
			resp_cache_free(f->cache);
			close_own(f);
		}
	}
	if (rc)
		free(f);
	else
		*out = f;
	return rc;
}

void resp_front_free(struct resp_front *f)
{
	if (!f)
		return;
	resp_workers_close(f);
	resp_cache_free(f->cache);
	close_own(f);
	free(f);
}

void resp_front_drain(struct resp_front *f)
{
	f->draining = true;
}

void resp_front_counts(struct resp_front *f, struct resp_counts *c)
{
	*c = (struct resp_counts){ f->connections, f->clients, f->commands, f->errors, f->collisions };
}

/* ---- replies ---- */

void resp_ok(struct resp_conn *c)
{
	resp_add_cstr(&c->r, "+OK\r\n");
}

void resp_nil(struct resp_conn *c)
{
	resp_add_cstr(&c->r, c->proto == 3 ? "_\r\n" : "$-1\r\n");
}

void resp_map(struct resp_conn *c, size_t pairs)
{
	resp_add_head(&c->r, c->proto == 3 ? '%' : '*', (int64_t)(c->proto == 3 ? pairs : 2 * pairs));
}

void resp_error(struct resp_conn *c, const char *fmt, ...)
{
	char text[1200];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	err_one_line(text);
	resp_add_cstr(&c->r, "-");
	resp_add_cstr(&c->r, text);
	resp_add_cstr(&c->r, "\r\n");
	c->front->errors++;
}

/* ---- connections ---- */

/* Nothing is left to do: waits for more, or comes back (*some false) to be called when there is. */
static int more_comes(struct resp_conn *c, int *rounds, bool *some, struct ds_err *err)
{
	int rc;

	*some = true;
	if (c->r.out.len)
		resp_allow(c, c->r.out.len);
	if (!c->by_workers) {
		rc = resp_flush(&c->r, err);
		c->r.deadline = 0;
		return rc ? rc : resp_wait(&c->r, err);
	}
	if ((!c->r.drained || c->ending) && ++*rounds <= ROUNDS)
		return resp_poll(&c->r, some, err);
	rc = resp_flush(&c->r, err);
	*some = false;
	if (!rc && (!c->r.drained || c->ending))
		resp_worker_again(c);
	return rc;
}

int resp_serve_some(struct resp_conn *c, bool *more, struct ds_err *err)
{
	bool some = true;
	int rc = 0, rounds = 0;

	*more = true;
	c->r.drained = false; /* or it would not have been called */
	while (!rc && !c->quit) {
		if (c->r.at == c->r.end)
			rc = more_comes(c, &rounds, &some, err);
		if (rc || !some)
			return rc;
		if (c->r.closed && c->r.at == c->r.end)
			break;
		c->within = true;
		rc = resp_command(c, err);
		c->within = rc != 0;
	}
	*more = false;
	return rc;
}

/* What was answered goes out still; what is no RESP is told so. */
static int end_well(struct resp_conn *c, int rc, struct ds_err *err)
{
	struct ds_err ignored;

	resp_allow(c, c->r.out.len);
	if (rc == DS_PROTO) {
		resp_error(c, "ERR Protocol error: %s", err->text);
		resp_flush(&c->r, &ignored);
	}
	if (!rc)
		rc = resp_flush(&c->r, err);
	if (rc == DS_UNAVAILABLE && !c->within) /* the client has gone, which it may between two commands */
		rc = 0;
	return rc;
}

static int begin(struct resp_conn *c, struct resp_front *f, int fd, const char *peer, struct ds_err *err)
{
	int on = 1, rc;

	c->front = f;
	c->peer = peer;
	c->proto = 2;
	c->id = ++f->connections;
	fd_nonblock(fd, false);
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on); /* no other socket has it */
	c->meta = meta_new();
	if (!c->meta)
		return err_nomem(err, 1, "a connection");
	rc = resp_open(&c->r, fd, peer, err);
	if (!rc && f->store->ops->find)
		rc = frame_parser_new(&c->parser, err);
	return rc ? rc : store_begin(&c->ss, f->store, err);
}

int resp_serve(struct resp_front *f, int fd, const char *peer, struct ds_err *err)
{
	struct resp_conn *c = resp_conn_take(f, err);
	bool more;
	int rc;

	if (!c)
		return err->code;
	f->clients++;
	rc = begin(c, f, fd, peer, err);
	if (!rc && f->workers)
		rc = resp_by_workers(c, err);
	else if (!rc)
		rc = resp_serve_some(c, &more, err);
	if (c->r.in)
		rc = end_well(c, rc, err);
	store_end(c->ss);
	f->clients--;
	resp_forget(c);
	resp_close(&c->r);
	meta_free(c->meta);
	frame_parser_free(c->parser);
	buf_free(&c->text);
	free(c->argv);
	resp_conn_give(c);
	return rc;
}
