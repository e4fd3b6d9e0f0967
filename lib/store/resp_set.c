/* What the Redis front does with values: storing them. */
#include <string.h>

#include "base/time.h"
#include "store/resp_impl.h"
#include "store/store_impl.h"

#define SECOND ((int64_t)1000000000)
#define MS ((int64_t)1000000)
#define LONGEST (100 * 365 * (86400 * SECOND)) /* longer is as long: nanoseconds since 1970 end in 2262 */

struct set {
	bool if_absent, if_there, get, keep, timed;
	int64_t ttl_ns;      /* timed: at most 0 is past already */
};

/* A store that says that the key is there already means an item that is just over, perhaps, or another name's. */
static bool is_there(struct resp_conn *c, struct resp_text name, struct ds_err *err)
{
	struct resp_seek s;

	return resp_seek(c, name, false, &s, err) != 0 || s.found;
}

/* What cannot be done was replied: false. */
static bool put(struct resp_conn *c, struct resp_text name, struct resp_text value, const struct set *how, bool *stored,
	struct ds_err *err)
{
	struct iovec iov = { (void *)(uintptr_t)value.p, value.n };
	struct store_put p = {
		.key = resp_key(name), .meta = c->meta, .iov = &iov, .iovs = 1,
		.replace = !how->if_absent, .exact = how->if_absent,
		.ttl_ns = how->timed ? (uint64_t)how->ttl_ns : 0,
	};
	enum store_put_result result;
	bool was;
	int rc;

	meta_reset(c->meta);
	meta_put_bin(c->meta, "name", name.p, name.n);
	rc = store_put(c->ss, &p, &result, err);
	if (!rc && result == STORE_ALREADY && !is_there(c, name, err)) {
		p.replace = true;
		rc = store_put(c->ss, &p, &result, err);
	}
	/* A value that is not wanted is as one that was forgotten at once; the one before it must not be seen again. */
	if (!rc && result == STORE_NOT_ADMITTED && p.replace)
		rc = store_del(c->ss, &p.key, &was, err);
	if (rc)
		resp_error(c, "%s %s", err->full ? "OOM" : rc == DS_TEMP ? "TRYAGAIN" : "ERR", err->text);
	*stored = result != STORE_ALREADY;
	return !rc;
}

/* ---- SET ---- */

/* Argument i as a time in `unit`, from now or (absolute) since 1970; false: it is none. */
static bool parse_ttl(struct resp_conn *c, size_t i, int64_t unit, bool absolute, struct set *how)
{
	struct resp_text a = resp_arg(c, i);
	int64_t v;

	if (!resp_number((const char *)a.p, a.n, INT64_MIN, INT64_MAX, &v)) {
		resp_error(c, "ERR value is not an integer or out of range");
		return false;
	}
	if (v <= 0) {
		resp_error(c, "ERR invalid expire time in '%s' command", c->command->name);
		return false;
	}
	how->timed = true;
	if (__builtin_mul_overflow(v, unit, &how->ttl_ns))
		how->ttl_ns = INT64_MAX;
	if (absolute)
		how->ttl_ns -= time_wall_ns();
	if (how->ttl_ns > LONGEST)
		how->ttl_ns = LONGEST;
	return true;
}

static bool parse_option(struct resp_conn *c, size_t *i, struct set *how)
{
	static const struct { const char *name; int64_t unit; bool absolute; } times[] = {
		{ "ex", SECOND, false }, { "px", MS, false }, { "exat", SECOND, true }, { "pxat", MS, true },
	};

	for (size_t k = 0; k < ARRAY_LEN(times); k++)
		if (resp_is(c, *i, times[k].name) && *i + 1 < c->argc && !how->timed && !how->keep)
			return parse_ttl(c, ++*i, times[k].unit, times[k].absolute, how);
	if (resp_is(c, *i, "nx") && !how->if_there)
		return how->if_absent = true;
	if (resp_is(c, *i, "xx") && !how->if_absent)
		return how->if_there = true;
	if (resp_is(c, *i, "get"))
		return how->get = true;
	if (resp_is(c, *i, "keepttl") && !how->timed)
		return how->keep = true;
	resp_error(c, "ERR syntax error");
	return false;
}

/* What is there already matters to XX, GET and KEEPTTL.  Not at one instant with the put that follows. */
static bool look_first(struct resp_conn *c, struct resp_text name, struct set *how, struct resp_seek *old,
	struct ds_err *err)
{
	*old = (struct resp_seek){ 0 };
	if (!how->get && !how->if_there && !how->keep)
		return true;
	if (resp_seek(c, name, how->get, old, err)) {
		resp_store_error(c, err);
		return false;
	}
	if (old->busy) {
		resp_error(c, "TRYAGAIN too many values are on their way");
		return false;
	}
	if (how->keep && old->found && old->expires_ns) {
		how->timed = true;
		how->ttl_ns = (int64_t)old->expires_ns - time_wall_ns();
	}
	return true;
}

static int reply_set(struct resp_conn *c, const struct set *how, const struct resp_seek *old, bool stored,
	struct ds_err *err)
{
	if (how->get && old->found)
		return resp_send_bytes(c, old->data, old->size, err);
	if (how->get || !stored)
		resp_nil(c);
	else
		resp_ok(c);
	return 0;
}

static int set(struct resp_conn *c, struct resp_text name, struct resp_text value, struct set *how, struct ds_err *err)
{
	struct store_key key = resp_key(name);
	struct resp_seek old;
	bool stored = false, fine = look_first(c, name, how, &old, err), was;
	int rc = 0;

	if (fine && how->timed && how->ttl_ns <= 0 && !how->if_absent) { /* past: as if it had been */
		stored = true;
		rc = store_del(c->ss, &key, &was, err);
		if (rc)
			resp_store_error(c, err);
		fine = !rc;
		rc = 0;
	} else if (fine && (!how->if_there || old.found) && (!how->timed || how->ttl_ns > 0)) {
		fine = put(c, name, value, how, &stored, err);
	}
	if (fine)
		rc = reply_set(c, how, &old, stored, err);
	store_pool_give(c->front->pool, &old.b);
	return rc;
}

int resp_do_set(struct resp_conn *c, struct ds_err *err)
{
	struct set how = { 0 };
	struct resp_text name;

	for (size_t i = 3; i < c->argc; i++)
		if (!parse_option(c, &i, &how))
			return 0;
	if (!resp_name(c, 1, &name))
		return 0;
	return set(c, name, resp_arg(c, 2), &how, err);
}

static int setex(struct resp_conn *c, int64_t unit, struct ds_err *err)
{
	struct set how = { 0 };
	struct resp_text name;

	if (!parse_ttl(c, 2, unit, false, &how) || !resp_name(c, 1, &name))
		return 0;
	return set(c, name, resp_arg(c, 3), &how, err);
}

int resp_do_setex(struct resp_conn *c, struct ds_err *err)
{
	return setex(c, SECOND, err);
}

int resp_do_psetex(struct resp_conn *c, struct ds_err *err)
{
	return setex(c, MS, err);
}

int resp_do_setnx(struct resp_conn *c, struct ds_err *err)
{
	struct set how = { .if_absent = true };
	struct resp_text name;
	bool stored;

	if (resp_name(c, 1, &name) && put(c, name, resp_arg(c, 2), &how, &stored, err))
		resp_add_head(&c->r, ':', stored);
	return 0;
}

/* ---- MSET ---- */

/* Pair by pair as they come, so that any number of large values takes the memory of one. */
int resp_do_mset(struct resp_conn *c, struct ds_err *err)
{
	const struct set how = { 0 };
	struct resp_text name;
	bool fine = c->argc % 2 == 1, stored;
	int rc = 0;

	if (!fine) {
		c->refused = "ERR wrong number of arguments for 'mset'";
		resp_error(c, "%s", c->refused);
	}
	while (!rc && c->args < c->argc) {
		resp_forget(c);
		rc = resp_next(c, false, err);
		if (!rc && c->args < c->argc)
			rc = resp_next(c, true, err);
		if (rc || !fine)
			continue;
		if (c->refused)
			resp_error(c, "%s", c->refused);
		resp_session_deadline(c);
		resp_turn(c, c->args);
		fine = !c->refused && resp_name(c, c->args - 2, &name) &&
			put(c, name, resp_arg(c, c->args - 1), &how, &stored, err);
		if (!fine && !c->refused)
			c->refused = "";
	}
	if (!rc && fine)
		resp_ok(c);
	return rc;
}
