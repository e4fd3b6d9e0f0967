/* What the Redis front says of itself, and the table of its commands. */
#include <fnmatch.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/time.h"
#include "base/version.h"
#include "store/resp_impl.h"

#define SPOKEN "7.0.0" /* the version of Redis whose protocol this is */

/* ---- small ones ---- */

static int do_ping(struct resp_conn *c, struct ds_err *err)
{
	struct resp_text a;

	(void)err;
	if (c->argc == 1) {
		resp_add_cstr(&c->r, "+PONG\r\n");
		return 0;
	}
	a = resp_arg(c, 1);
	resp_add_bulk(&c->r, a.p, a.n);
	return 0;
}

static int do_quit(struct resp_conn *c, struct ds_err *err)
{
	(void)err;
	resp_ok(c);
	c->quit = true;
	return 0;
}

static int do_reset(struct resp_conn *c, struct ds_err *err)
{
	(void)err;
	c->proto = 2;
	c->name[0] = 0;
	resp_add_cstr(&c->r, "+RESET\r\n");
	return 0;
}

static int do_select(struct resp_conn *c, struct ds_err *err)
{
	(void)err;
	if (resp_is(c, 1, "0"))
		resp_ok(c);
	else
		resp_error(c, "ERR DB index is out of range: there is database 0 only");
	return 0;
}

static int do_auth(struct resp_conn *c, struct ds_err *err)
{
	(void)err;
	resp_error(c, "ERR AUTH: no password is set here");
	return 0;
}

static int do_refuse(struct resp_conn *c, struct ds_err *err)
{
	(void)err;
	resp_error(c, "ERR %s is not done here: the store has items that are not this client's", c->command->name);
	return 0;
}

static int do_dbsize(struct resp_conn *c, struct ds_err *err)
{
	struct store_stat st;

	if (store_stat(c->ss, &st, err))
		resp_store_error(c, err);
	else
		resp_add_head(&c->r, ':', (int64_t)st.items);
	return 0;
}

/* ---- HELLO, CLIENT ---- */

static bool set_name(struct resp_conn *c, size_t i)
{
	struct resp_text a = resp_arg(c, i);

	for (size_t k = 0; k < a.n; k++)
		if (a.p[k] <= ' ' || a.p[k] > '~' || a.n >= sizeof c->name) {
			resp_error(c, "ERR a client's name has at most 64 characters and no blanks");
			return false;
		}
	if (a.n)
		memcpy(c->name, a.p, a.n);
	c->name[a.n] = 0;
	return true;
}

static void pair(struct resp_conn *c, const char *key, const char *value)
{
	resp_add_bulk(&c->r, key, strlen(key));
	resp_add_bulk(&c->r, value, strlen(value));
}

static int do_hello(struct resp_conn *c, struct ds_err *err)
{
	int proto = c->proto;

	(void)err;
	if (c->argc > 1) {
		proto = resp_is(c, 1, "3") ? 3 : resp_is(c, 1, "2") ? 2 : 0;
		if (!proto) {
			resp_error(c, "NOPROTO unsupported protocol version");
			return 0;
		}
	}
	for (size_t i = 2; i < c->argc; i += 2) {
		if (resp_is(c, i, "auth"))
			return do_auth(c, err);
		if (!resp_is(c, i, "setname") || i + 1 == c->argc) {
			resp_error(c, "ERR syntax error in HELLO");
			return 0;
		}
		if (!set_name(c, i + 1))
			return 0;
	}
	c->proto = proto;
	resp_map(c, 7);
	pair(c, "server", "ds-kvstore");
	pair(c, "version", SPOKEN);
	resp_add_bulk(&c->r, "proto", 5);
	resp_add_head(&c->r, ':', proto);
	resp_add_bulk(&c->r, "id", 2);
	resp_add_head(&c->r, ':', (int64_t)c->id);
	pair(c, "mode", "standalone");
	pair(c, "role", "master");
	resp_add_bulk(&c->r, "modules", 7);
	resp_add_head(&c->r, '*', 0);
	return 0;
}

static int do_client(struct resp_conn *c, struct ds_err *err)
{
	char text[800], peer[300];

	(void)err;
	if (resp_is(c, 1, "id")) {
		resp_add_head(&c->r, ':', (int64_t)c->id);
	} else if (resp_is(c, 1, "setname") && c->argc == 3) {
		if (set_name(c, 2))
			resp_ok(c);
	} else if (resp_is(c, 1, "getname")) {
		if (c->name[0])
			resp_add_bulk(&c->r, c->name, strlen(c->name));
		else
			resp_nil(c);
	} else if (resp_is(c, 1, "setinfo") || resp_is(c, 1, "no-evict") || resp_is(c, 1, "no-touch")) {
		resp_ok(c);
	} else if (resp_is(c, 1, "info") || resp_is(c, 1, "list")) { /* of the others it says nothing */
		snprintf(peer, sizeof peer, "%s", c->peer);
		for (char *p = peer; *p; p++) /* clients cut the line at blanks */
			*p = *p == ' ' ? '-' : *p;
		/* all that clients look for */
		snprintf(text, sizeof text, "id=%" PRIu64 " addr=%s laddr= fd=%d name=%s age=0 idle=0 flags=N db=0 "
			"sub=0 psub=0 multi=-1 qbuf=0 qbuf-free=0 argv-mem=0 multi-mem=0 obl=0 oll=0 omem=0 "
			"tot-mem=0 events=r cmd=client user=default redir=-1 resp=%d\n", c->id, peer, c->r.fd,
			c->name, c->proto);
		resp_add_bulk(&c->r, text, strlen(text));
	} else {
		resp_error(c, "ERR unknown subcommand of CLIENT");
	}
	return 0;
}

/* ---- CONFIG, COMMAND ---- */

static int do_config(struct resp_conn *c, struct ds_err *err)
{
	static const char *const all[][2] = {
		{ "save", "" }, { "appendonly", "no" }, { "databases", "1" }, { "timeout", "0" },
	};
	char pattern[64];
	bool want[ARRAY_LEN(all)] = { false };
	size_t n = 0;

	(void)err;
	if (!resp_is(c, 1, "get")) {
		resp_error(c, "ERR CONFIG GET only: the settings are options of ds-kvstore");
		return 0;
	}
	for (size_t i = 2; i < c->argc; i++) {
		struct resp_text a = resp_arg(c, i);

		snprintf(pattern, sizeof pattern, "%.*s", a.n < sizeof pattern ? (int)a.n : 0, (const char *)a.p);
		for (size_t k = 0; k < ARRAY_LEN(all); k++)
			if (!want[k] && fnmatch(pattern, all[k][0], FNM_CASEFOLD) == 0)
				want[k] = ++n;
	}
	resp_map(c, n);
	for (size_t k = 0; k < ARRAY_LEN(all); k++)
		if (want[k])
			pair(c, all[k][0], all[k][1]);
	return 0;
}

static void describe(struct resp_conn *c, const struct resp_command *k)
{
	resp_add_head(&c->r, '*', 6);
	resp_add_bulk(&c->r, k->name, strlen(k->name));
	resp_add_head(&c->r, ':', k->max == k->min ? (int64_t)k->min : -(int64_t)k->min);
	resp_add_head(&c->r, '*', 0);
	for (size_t i = 0; i < ARRAY_LEN(k->keys); i++)
		resp_add_head(&c->r, ':', k->keys[i]);
}

static int do_command(struct resp_conn *c, struct ds_err *err)
{
	(void)err;
	if (c->argc == 1) {
		resp_add_head(&c->r, '*', (int64_t)resp_command_count);
		for (const struct resp_command *k = resp_commands; k->name; k++)
			describe(c, k);
	} else if (resp_is(c, 1, "count")) {
		resp_add_head(&c->r, ':', (int64_t)resp_command_count);
	} else if (resp_is(c, 1, "docs")) {
		resp_map(c, 0);
	} else if (resp_is(c, 1, "info")) {
		resp_add_head(&c->r, '*', (int64_t)c->argc - 2);
		for (size_t i = 2; i < c->argc; i++) {
			const struct resp_command *k = resp_commands;

			while (k->name && !resp_is(c, i, k->name))
				k++;
			if (k->name)
				describe(c, k);
			else
				resp_nil(c);
		}
	} else {
		resp_error(c, "ERR unknown subcommand of COMMAND");
	}
	return 0;
}

/* ---- INFO ---- */

static void info_server(struct resp_conn *c, const struct store_stat *st, struct buf *b)
{
	(void)st;
	buf_printf(b, "redis_version:%s\r\ndsutils_version:%s\r\nredis_mode:standalone\r\nprocess_id:%d\r\n", SPOKEN,
		DS_VERSION, (int)getpid());
	buf_printf(b, "uptime_in_seconds:%" PRId64 "\r\n", (time_mono_ns() - c->front->began_ns) / 1000000000);
}

static void info_clients(struct resp_conn *c, const struct store_stat *st, struct buf *b)
{
	(void)st;
	buf_printf(b, "connected_clients:%" PRIu64 "\r\n", c->front->clients);
}

static void info_memory(struct resp_conn *c, const struct store_stat *st, struct buf *b)
{
	(void)c;
	buf_printf(b, "used_memory:%" PRIu64 "\r\nmaxmemory:%" PRIu64 "\r\n", st->bytes, st->capacity);
}

static void info_persistence(struct resp_conn *c, const struct store_stat *st, struct buf *b)
{
	(void)c;
	(void)st;
	buf_str(b, "loading:0\r\n");
}

static void info_stats(struct resp_conn *c, const struct store_stat *st, struct buf *b)
{
	struct resp_front *f = c->front;

	buf_printf(b, "total_connections_received:%" PRIu64 "\r\ntotal_commands_processed:%" PRIu64 "\r\n"
		"total_error_replies:%" PRIu64 "\r\nname_collisions:%" PRIu64 "\r\n",
		f->connections, f->commands, f->errors, f->collisions);
	buf_printf(b, "keyspace_hits:%" PRIu64 "\r\nkeyspace_misses:%" PRIu64 "\r\nevicted_keys:%" PRIu64
		"\r\nexpired_keys:%" PRIu64 "\r\n", st->hits, st->misses, st->evicted, st->expired);
}

static void info_replication(struct resp_conn *c, const struct store_stat *st, struct buf *b)
{
	(void)c;
	(void)st;
	buf_str(b, "role:master\r\nconnected_slaves:0\r\n");
}

static void info_store(struct resp_conn *c, const struct store_stat *st, struct buf *b)
{
	uint64_t v;

	(void)c;
	for (const struct store_counter *k = store_counters; k->name; k++) {
		memcpy(&v, (const char *)st + k->offset, sizeof v);
		buf_printf(b, "ds_%s:%" PRIu64 "\r\n", k->name, v);
	}
}

static void info_keyspace(struct resp_conn *c, const struct store_stat *st, struct buf *b)
{
	(void)c;
	if (st->items)
		buf_printf(b, "db0:keys=%" PRIu64 ",expires=0,avg_ttl=0\r\n", st->items);
}

static int do_info(struct resp_conn *c, struct ds_err *err)
{
	static const struct {
		const char *name;
		void (*say)(struct resp_conn *c, const struct store_stat *st, struct buf *b);
	} sections[] = {
		{ "Server", info_server }, { "Clients", info_clients }, { "Memory", info_memory },
		{ "Persistence", info_persistence }, { "Stats", info_stats }, { "Replication", info_replication },
		{ "Store", info_store }, { "Keyspace", info_keyspace },
	};
	struct store_stat st = { 0 };
	struct buf b = { 0 };

	if (store_stat(c->ss, &st, err)) {
		resp_store_error(c, err);
		return 0;
	}
	for (size_t k = 0; k < ARRAY_LEN(sections); k++) {
		bool want = c->argc == 1;

		for (size_t i = 1; i < c->argc; i++)
			want = want || resp_is(c, i, sections[k].name) || resp_is(c, i, "all") ||
				resp_is(c, i, "default") || resp_is(c, i, "everything");
		if (!want)
			continue;
		buf_printf(&b, "%s# %s\r\n", b.len ? "\r\n" : "", sections[k].name);
		sections[k].say(c, &st, &b);
	}
	resp_add_bulk(&c->r, b.p ? b.p : "", b.len);
	buf_free(&b);
	return 0;
}

/* ---- the table ---- */

const struct resp_command resp_commands[] = {
	/* name min max value stream keys */
	{ "get", 2, 2, 0, false, { 1, 1, 1 }, resp_do_get },
	{ "set", 3, 10, 2, false, { 1, 1, 1 }, resp_do_set },
	{ "ping", 1, 2, 0, false, { 0 }, do_ping },
	{ "exists", 2, 0, 0, false, { 1, -1, 1 }, resp_do_exists },
	{ "mget", 2, 0, 0, false, { 1, -1, 1 }, resp_do_mget },
	{ "mset", 3, 0, 0, true, { 1, -1, 2 }, resp_do_mset },
	{ "setex", 4, 4, 3, false, { 1, 1, 1 }, resp_do_setex },
	{ "psetex", 4, 4, 3, false, { 1, 1, 1 }, resp_do_psetex },
	{ "setnx", 3, 3, 2, false, { 1, 1, 1 }, resp_do_setnx },
	{ "strlen", 2, 2, 0, false, { 1, 1, 1 }, resp_do_strlen },
	{ "type", 2, 2, 0, false, { 1, 1, 1 }, resp_do_type },
	{ "ttl", 2, 2, 0, false, { 1, 1, 1 }, resp_do_ttl },
	{ "pttl", 2, 2, 0, false, { 1, 1, 1 }, resp_do_pttl },
	{ "del", 2, 0, 0, false, { 1, -1, 1 }, resp_do_del },
	{ "unlink", 2, 0, 0, false, { 1, -1, 1 }, resp_do_del },
	{ "echo", 2, 2, 0, false, { 0 }, do_ping },
	{ "info", 1, 0, 0, false, { 0 }, do_info },
	{ "dbsize", 1, 1, 0, false, { 0 }, do_dbsize },
	{ "select", 2, 2, 0, false, { 0 }, do_select },
	{ "hello", 1, 0, 0, false, { 0 }, do_hello },
	{ "auth", 2, 3, 0, false, { 0 }, do_auth },
	{ "client", 2, 0, 0, false, { 0 }, do_client },
	{ "command", 1, 0, 0, false, { 0 }, do_command },
	{ "config", 3, 0, 0, false, { 0 }, do_config },
	{ "quit", 1, 0, 0, false, { 0 }, do_quit },
	{ "reset", 1, 1, 0, false, { 0 }, do_reset },
	{ "flushall", 1, 0, 0, false, { 0 }, do_refuse },
	{ "flushdb", 1, 0, 0, false, { 0 }, do_refuse },
	{ "keys", 2, 2, 0, false, { 0 }, do_refuse },
	{ "scan", 2, 0, 0, false, { 0 }, do_refuse },
	{ NULL, 0, 0, 0, false, { 0 }, NULL },
};
const size_t resp_command_count = ARRAY_LEN(resp_commands) - 1;
