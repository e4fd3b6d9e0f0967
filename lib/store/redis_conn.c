#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/time.h"
#include "store/redis_impl.h"

#define WAIT_NS ((int64_t)30000000000)     /* where the session has no deadline: without any progress */
#define CONNECT_NS ((int64_t)5000000000)
#define REFUSED_NS ((int64_t)10000000)     /* for the other addresses of a name */
#define PAUSE_LEAST_NS ((int64_t)50000000)
#define PAUSE_MOST_NS ((int64_t)2000000000)

enum { SETTLE_BYTES = 8 << 20, TRY_AGAIN_MS = 2, LOST_MOST = 2 };

int redis_node_add(struct redis_session *ss, const struct addr *a, size_t *i, struct ds_err *err)
{
	struct redis_node *node, **nodes;

	for (*i = 0; *i < ss->n; ++*i)
		if (strcmp(ss->nodes[*i]->addr.text, a->text) == 0)
			return 0;
	if (ss->n == REDIS_NODES)
		return err_set(err, DS_PROTO, "a cluster of more than %d nodes", REDIS_NODES);
	nodes = mem_more(ss->nodes, &ss->cap, ss->n, sizeof *nodes);
	if (nodes)
		ss->nodes = nodes;
	node = nodes ? mem_calloc(1, sizeof *node) : NULL;
	if (!node)
		return err_nomem(err, sizeof *node, "a node of a cluster");
	node->addr = *a;
	node->fd = node->r.fd = -1;
	ss->nodes[ss->n++] = node;
	return 0;
}

int64_t redis_deadline(const struct redis_session *ss)
{
	int64_t until = store_until(&ss->base);

	return until ? until : time_mono_ns() + WAIT_NS;
}

/* ---- connecting ---- */

void redis_drop(struct redis_node *node)
{
	if (node->fd >= 0)
		close(node->fd);
	resp_close(&node->r);
	node->fd = -1;
	node->owed = 0;
	node->used = false;
}

void redis_abandon(struct redis_session *ss)
{
	for (size_t i = 0; i < ss->n; i++)
		if (ss->nodes[i]->owed)
			redis_drop(ss->nodes[i]);
}

/* Until a connection is there or not; 0: too late.  The time may become shorter meanwhile. */
static int wait_connected(const struct redis_session *ss, struct pollfd *p, int64_t until)
{
	int got;

	do {
		int64_t by = store_earlier(until, store_until(&ss->base)), left = by - time_mono_ns();

		if (left <= 0)
			return poll(p, 1, 0);
		got = poll(p, 1, (int)((left < STORE_LOOK_NS ? left : STORE_LOOK_NS) / 1000000) + 1);
	} while (!got || (got < 0 && errno == EINTR));
	return got;
}

static int connect_once(struct redis_session *ss, struct redis_node *node, int64_t deadline, struct ds_err *err)
{
	int64_t now = time_mono_ns(), until = deadline < now + CONNECT_NS ? deadline : now + CONNECT_NS;
	struct pollfd p = { .events = POLLOUT };
	int why = 0, rc;
	socklen_t n = sizeof why;

	rc = addr_start_until(&node->addr, until, &p.fd, err);
	why = errno;
	if (!rc) {
		int got = wait_connected(ss, &p, until);

		why = got == 0 ? ETIMEDOUT : got < 0 || getsockopt(p.fd, SOL_SOCKET, SO_ERROR, &why, &n) ? errno : why;
		if (!why) {
			node->fd = p.fd;
			return 0;
		}
		close(p.fd);
	}
	/* A name may stand for several addresses. */
	if (why == ECONNREFUSED && node->addr.kind == ADDR_TCP)
		return addr_connect(&node->addr, REFUSED_NS, &node->fd, err);
	if (rc)
		return rc;
	errno = why;
	return err_errno(err, DS_UNAVAILABLE, "cannot connect to '%s'", node->addr.text);
}

/* A command of ours whose reply must be OK. */
static int expect_ok(struct redis_node *node, size_t n, const char *const *args, struct ds_err *err)
{
	struct resp_reply reply;
	int rc;

	redis_add_command(node, n, args);
	rc = resp_reply(&node->r, &reply, err);
	if (!rc && reply.kind == RESP_ERROR)
		rc = redis_refused(node, reply.text, err);
	else if (!rc && reply.kind != RESP_STATUS)
		rc = err_set(err, DS_PROTO, "'%s' answers %s with something else than OK", node->addr.text, args[0]);
	return rc;
}

static int greet(struct redis_session *ss, struct redis_node *node, struct ds_err *err)
{
	char db[24];
	int rc = 0;

	if (ss->s->password && ss->s->user)
		rc = expect_ok(node, 3, (const char *const[]){ "AUTH", ss->s->user, ss->s->password }, err);
	else if (ss->s->password)
		rc = expect_ok(node, 2, (const char *const[]){ "AUTH", ss->s->password }, err);
	if (!rc && ss->s->db) {
		snprintf(db, sizeof db, "%lld", (long long)ss->s->db);
		rc = expect_ok(node, 2, (const char *const[]){ "SELECT", db }, err);
	}
	return rc;
}

static int connect_node(struct redis_session *ss, struct redis_node *node, struct ds_err *err)
{
	int64_t now = time_mono_ns();
	int rc;

	if (now < node->again_ns) {
		*err = node->why;
		return err->code;
	}
	rc = connect_once(ss, node, redis_deadline(ss), err);
	if (!rc)
		rc = resp_open(&node->r, node->fd, node->addr.text, err);
	if (!rc) {
		node->r.deadline = redis_deadline(ss);
		node->r.hurry = &ss->base.hurry;
		rc = greet(ss, node, err);
	}
	if (!rc) {
		node->again_ns = node->pause_ns = 0;
		return 0;
	}
	redis_drop(node);
	node->pause_ns = !node->pause_ns ? PAUSE_LEAST_NS : 2 * node->pause_ns < PAUSE_MOST_NS ? 2 * node->pause_ns
		: PAUSE_MOST_NS;
	node->again_ns = time_mono_ns() + node->pause_ns;
	node->why = *err;
	return rc;
}

/* ---- replies that nobody waits for ---- */

static int settle(struct redis_node *node, struct ds_err *err)
{
	struct resp_reply reply;
	int rc = 0;

	while (!rc && node->owed) {
		rc = resp_reply(&node->r, &reply, err);
		if (!rc)
			rc = resp_reply_skip(&node->r, &reply, SETTLE_BYTES, err);
		node->owed--;
	}
	return rc;
}

void redis_settle(struct redis_session *ss)
{
	struct ds_err err;

	for (size_t i = 0; i < ss->n; i++)
		if (ss->nodes[i]->owed && settle(ss->nodes[i], &err))
			redis_drop(ss->nodes[i]);
}

int redis_ready(struct redis_session *ss, struct redis_node *node, struct ds_err *err)
{
	int64_t deadline = redis_deadline(ss);

	if (deadline <= time_mono_ns())
		return err_set(err, DS_TEMP, "'%s': too late to ask", node->addr.text);
	if (node->fd >= 0)
		node->r.deadline = deadline;
	else
		return connect_node(ss, node, err);
	return 0;
}

/* ---- commands ---- */

void redis_add_command(struct redis_node *node, size_t n, const char *const *args)
{
	resp_add_head(&node->r, '*', (int64_t)n);
	for (size_t i = 0; i < n; i++)
		resp_add_bulk(&node->r, args[i], strlen(args[i]));
}

int redis_refused(const struct redis_node *node, const char *text, struct ds_err *err)
{
	static const struct { const char *word; int code; } known[] = {
		{ "OOM", DS_TEMP }, { "TRYAGAIN", DS_TEMP }, { "CLUSTERDOWN", DS_TEMP }, { "LOADING", DS_TEMP },
		{ "BUSY", DS_TEMP }, { "MASTERDOWN", DS_TEMP }, { "MISCONF", DS_TEMP }, { "READONLY", DS_TEMP },
		{ "NOREPLICAS", DS_TEMP }, { "MOVED", DS_TEMP }, { "ASK", DS_TEMP }, { "NOAUTH", DS_CONFIG },
		{ "WRONGPASS", DS_CONFIG }, { "NOPERM", DS_CONFIG },
		{ "WRONGTYPE", DS_NO },
	};
	size_t n = strcspn(text, " ");
	int code = DS_PROTO;

	for (size_t i = 0; i < ARRAY_LEN(known); i++)
		if (strlen(known[i].word) == n && memcmp(known[i].word, text, n) == 0)
			code = known[i].code;
	if (strncmp(text, "ERR AUTH", 8) == 0 || strncmp(text, "ERR DB index", 12) == 0 ||
		strncmp(text, "ERR invalid password", 20) == 0 || strstr(text, "unauthenticated"))
		code = DS_CONFIG;
	err_set(err, code, "'%s' refuses: %.300s", node->addr.text, text);
	err->full = strncmp(text, "OOM ", 4) == 0;
	return code;
}

static void pause_ms(const struct redis_session *ss, int ms)
{
	int64_t ns = (int64_t)ms * 1000000, left = redis_deadline(ss) - time_mono_ns();

	if (ns > left)
		ns = left > 0 ? left : 0;
	nanosleep(&(struct timespec){ .tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000 }, NULL);
}

/* Once, to this node. */
static int exchange(struct redis_session *ss, struct redis_node *node, bool asking, const struct iovec *iov, size_t n,
	struct resp_reply *reply, struct ds_err *err)
{
	int rc = redis_ready(ss, node, err);

	if (!rc && node->owed)
		rc = settle(node, err);
	if (!rc && asking)
		redis_add_command(node, 1, (const char *const[]){ "ASKING" });
	if (!rc)
		rc = resp_send(&node->r, iov, n, err);
	if (!rc && asking) {
		rc = resp_reply(&node->r, reply, err);
		if (!rc)
			rc = resp_reply_skip(&node->r, reply, RESP_LINE_MAX, err);
	}
	if (!rc)
		rc = resp_reply(&node->r, reply, err);
	return rc;
}

/* The connection of a command has failed: whether it is worth another try. */
static bool gone(struct redis_session *ss, struct redis_node *node, int rc)
{
	bool used = node->used;

	redis_drop(node);
	ss->stale = ss->slots != NULL;
	return rc == DS_UNAVAILABLE && (used || ss->slots);
}

int redis_call(struct redis_session *ss, const struct store_key *key, const struct iovec *iov, size_t n,
	struct redis_node **node, struct resp_reply *reply, struct ds_err *err)
{
	struct redis_node *to = NULL, *from;
	bool asking = false;
	int rc = 0, lost = 0;

	for (int tries = 0; tries <= REDIS_REDIRECTS; tries++) {
		if (!to && (rc = redis_node_of(ss, key, &to, err)))
			return rc;
		*node = from = to;
		rc = exchange(ss, from, asking, iov, n, reply, err);
		if (rc && (!gone(ss, from, rc) || ++lost > LOST_MOST))
			return rc;
		if (rc) { /* with a cluster, of another node perhaps */
			to = NULL;
			asking = false;
			continue;
		}
		from->used = true;
		if (reply->kind != RESP_ERROR)
			return 0;
		rc = redis_refused(from, reply->text, err);
		asking = false;
		if (ss->slots && strncmp(reply->text, "TRYAGAIN", 8) == 0)
			pause_ms(ss, TRY_AGAIN_MS << tries);
		else if (!ss->slots || !redis_redirect(ss, from, reply->text, &to, &asking))
			return rc;
	}
	return rc;
}

int redis_ask(struct redis_session *ss, const struct store_key *key, size_t n, const char *const *args,
	struct redis_node **node, struct resp_reply *reply, struct ds_err *err)
{
	struct buf b = { 0 };
	struct iovec iov;
	int rc;

	buf_printf(&b, "*%zu\r\n", n);
	for (size_t i = 0; i < n; i++)
		buf_printf(&b, "$%zu\r\n%s\r\n", strlen(args[i]), args[i]);
	iov = (struct iovec){ b.p, b.len };
	rc = b.nomem ? err_nomem(err, b.cap, "a command") : redis_call(ss, key, &iov, 1, node, reply, err);
	buf_free(&b);
	return rc;
}
