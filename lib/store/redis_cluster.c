#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/time.h"
#include "store/redis_impl.h"

enum { NO_NODE = UINT16_MAX, HOST_MAX = 255, SLOT_FIELDS = 64, REPLY_BYTES = 1 << 20 };

#define MAP_PAUSE_NS ((int64_t)100000000) /* between two readings of the map */

/* ---- slots: CRC-16/XMODEM of the name, or of what stands in its first {} ---- */

static unsigned crc16(const char *p, size_t n)
{
	unsigned crc = 0;

	while (n--) {
		crc ^= (unsigned)(uint8_t)*p++ << 8;
		for (int bit = 0; bit < 8; bit++)
			crc = crc & 0x8000 ? (crc << 1 ^ 0x1021) & 0xffff : crc << 1;
	}
	return crc;
}

unsigned redis_slot(const char *name, size_t n)
{
	const char *open = memchr(name, '{', n);
	const char *close = open ? memchr(open + 1, '}', n - (size_t)(open + 1 - name)) : NULL;

	if (close && close > open + 1)
		return crc16(open + 1, (size_t)(close - open - 1)) % REDIS_SLOTS;
	return crc16(name, n) % REDIS_SLOTS;
}

/* ---- nodes by what servers call them ---- */

/* host "": as who said it. */
static int node_at(struct redis_session *ss, const struct redis_node *from, const char *host, int64_t port, size_t *i,
	struct ds_err *err)
{
	char text[HOST_MAX + 32];
	struct addr a;
	int rc;

	if (!*host || strcmp(host, "?") == 0)
		host = from->addr.host;
	snprintf(text, sizeof text, strchr(host, ':') ? "tcp:[%s]:%d" : "tcp:%s:%d", host, (int)port);
	rc = addr_parse(text, &a, err);
	return rc ? rc : redis_node_add(ss, &a, i, err);
}

/* "MOVED 3999 HOST:PORT", "ASK 3999 HOST:PORT" */
bool redis_redirect(struct redis_session *ss, const struct redis_node *from, const char *text, struct redis_node **to,
	bool *asking)
{
	char host[HOST_MAX + 1];
	const char *slot = strchr(text, ' '), *where = slot ? strchr(slot + 1, ' ') : NULL;
	const char *colon = where ? strrchr(where, ':') : NULL;
	bool moved = strncmp(text, "MOVED ", 6) == 0;
	int64_t number, port;
	struct ds_err err;
	size_t i;

	if (!colon || (!moved && strncmp(text, "ASK ", 4) != 0) || (size_t)(colon - where) > sizeof host ||
		!resp_number(slot + 1, (size_t)(where - slot - 1), 0, REDIS_SLOTS - 1, &number) ||
		!resp_number(colon + 1, strlen(colon + 1), 1, 65535, &port))
		return false;
	memcpy(host, where + 1, (size_t)(colon - where - 1));
	host[colon - where - 1] = 0;
	if (node_at(ss, from, host, port, &i, &err))
		return false;
	*to = ss->nodes[i];
	*asking = !moved;
	if (moved) {
		ss->slots[number] = (uint16_t)i;
		ss->stale = true;
	}
	return true;
}

/* ---- the map ---- */

static int odd(const struct redis_node *node, struct ds_err *err)
{
	return err_set(err, DS_PROTO, "'%s': CLUSTER SLOTS says something else than it should", node->addr.text);
}

static int read_number(struct redis_node *node, int64_t min, int64_t max, int64_t *v, struct ds_err *err)
{
	struct resp_reply reply;
	int rc = resp_reply(&node->r, &reply, err);

	if (!rc && (reply.kind != RESP_INT || reply.n < min || reply.n > max))
		rc = odd(node, err);
	*v = rc ? 0 : reply.n;
	return rc;
}

/* A node of a row: [host, port, id, ...]; the first of a row is the one that takes commands. */
static int read_node(struct redis_session *ss, struct redis_node *from, bool first, size_t *i, struct ds_err *err)
{
	char host[HOST_MAX + 1] = "";
	struct resp_reply reply;
	int64_t port, fields;
	int rc = resp_reply(&from->r, &reply, err);

	if (!rc && (reply.kind != RESP_ARRAY || reply.n < 2 || reply.n > SLOT_FIELDS))
		return odd(from, err);
	fields = rc ? 0 : reply.n;
	if (!rc)
		rc = resp_reply(&from->r, &reply, err);
	if (!rc && reply.kind != RESP_NIL) {
		if (reply.kind != RESP_BULK || reply.n > HOST_MAX)
			return odd(from, err);
		rc = resp_bytes(&from->r, host, (size_t)reply.n, err);
		if (!rc)
			rc = resp_crlf(&from->r, err);
	}
	if (!rc)
		rc = read_number(from, 0, 65535, &port, err);
	if (!rc && first)
		rc = node_at(ss, from, host, port, i, err);
	for (int64_t k = 2; !rc && k < fields; k++) {
		rc = resp_reply(&from->r, &reply, err);
		if (!rc)
			rc = resp_reply_skip(&from->r, &reply, REPLY_BYTES, err);
	}
	return rc;
}

static int read_row(struct redis_session *ss, struct redis_node *from, uint16_t *slots, struct ds_err *err)
{
	struct resp_reply reply;
	int64_t begin = 0, end = 0, fields;
	size_t i = 0, other;
	int rc = resp_reply(&from->r, &reply, err);

	if (!rc && (reply.kind != RESP_ARRAY || reply.n < 3 || reply.n > SLOT_FIELDS))
		return odd(from, err);
	fields = rc ? 0 : reply.n;
	if (!rc)
		rc = read_number(from, 0, REDIS_SLOTS - 1, &begin, err);
	if (!rc)
		rc = read_number(from, begin, REDIS_SLOTS - 1, &end, err);
	for (int64_t k = 2; !rc && k < fields; k++)
		rc = read_node(ss, from, k == 2, k == 2 ? &i : &other, err);
	for (int64_t s = begin; !rc && s <= end; s++)
		slots[s] = (uint16_t)i;
	return rc;
}

static int read_map(struct redis_session *ss, struct redis_node *from, uint16_t *slots, struct ds_err *err)
{
	struct resp_reply reply;
	int64_t rows = 0;
	int rc = redis_ready(ss, from, err);

	memset(slots, 0xff, REDIS_SLOTS * sizeof *slots);
	if (rc)
		return rc;
	redis_add_command(from, 2, (const char *const[]){ "CLUSTER", "SLOTS" });
	rc = resp_reply(&from->r, &reply, err);
	if (!rc && reply.kind == RESP_ERROR) /* "ERR This instance has cluster support disabled" */
		return redis_refused(from, reply.text, err);
	if (!rc && reply.kind != RESP_ARRAY)
		rc = odd(from, err);
	if (!rc && reply.n > REDIS_SLOTS)
		rc = odd(from, err);
	if (!rc)
		rows = reply.n;
	for (int64_t k = 0; !rc && k < rows; k++)
		rc = read_row(ss, from, slots, err);
	if (rc)
		redis_drop(from);
	else
		from->used = true;
	return rc;
}

/* For sessions to come.  Without memory they begin with the seeds. */
static void publish(const struct redis_session *ss)
{
	struct redis *s = ss->s;
	uint16_t last = NO_NODE;

	pthread_mutex_lock(&s->lock);
	s->nknown = 0;
	for (size_t slot = 0; slot < REDIS_SLOTS; slot++) {
		uint16_t node = ss->slots[slot];
		struct addr *known;
		size_t i = 0;

		if (node == last || node == NO_NODE)
			continue;
		last = node;
		while (i < s->nknown && strcmp(s->known[i].text, ss->nodes[node]->addr.text) != 0)
			i++;
		known = i < s->nknown ? NULL : mem_more(s->known, &s->known_cap, s->nknown, sizeof *known);
		if (!known)
			continue;
		s->known = known;
		known[s->nknown++] = ss->nodes[node]->addr;
	}
	pthread_mutex_unlock(&s->lock);
}

/* Replies are on their way: what is asked now would be answered after them. */
static bool owing(const struct redis_session *ss)
{
	for (size_t i = 0; i < ss->n; i++)
		if (ss->nodes[i]->owed)
			return true;
	return false;
}

/* From a node that is connected, then from any. */
static int refresh(struct redis_session *ss, struct ds_err *err)
{
	uint16_t *slots = mem_array(REDIS_SLOTS, sizeof *slots);
	size_t known = ss->n; /* reading adds nodes */
	int rc = DS_UNAVAILABLE;

	if (!slots)
		return err_nomem(err, REDIS_SLOTS * sizeof *slots, "the map of a cluster");
	err_set(err, DS_UNAVAILABLE, "no node of the cluster is there");
	for (int pass = 0; rc && pass < 2; pass++)
		for (size_t i = 0; rc && i < known; i++)
			if ((ss->nodes[i]->fd >= 0) == (pass == 0))
				rc = read_map(ss, ss->nodes[i], slots, err);
	ss->map_again_ns = time_mono_ns() + MAP_PAUSE_NS;
	ss->map_why.code = 0;
	if (rc)
		ss->map_why = *err;
	if (!rc) {
		free(ss->slots);
		ss->slots = slots;
		ss->stale = false;
		publish(ss);
		return 0;
	}
	free(slots);
	return rc;
}

int redis_node_of(struct redis_session *ss, const struct store_key *key, struct redis_node **node, struct ds_err *err)
{
	char name[REDIS_NAME];
	unsigned slot;
	int rc;

	*node = ss->nodes[0];
	if (!ss->slots)
		return 0;
	if (ss->stale && time_mono_ns() >= ss->map_again_ns && !owing(ss) && (rc = refresh(ss, err)))
		return rc;
	redis_name(key, name);
	slot = redis_slot(name, sizeof name - 1);
	if (ss->slots[slot] == NO_NODE) {
		ss->stale = true;
		if (ss->map_why.code) {
			*err = ss->map_why;
			return err->code;
		}
		return err_set(err, DS_TEMP, "no node of the cluster at '%s' has slot %u", ss->nodes[0]->addr.text,
			slot);
	}
	*node = ss->nodes[ss->slots[slot]];
	return 0;
}
