/*
 * RESP from any bytes: replies; commands to the Redis front over a store in memory; what a server answers to the Redis
 * backends, whose values are made frames with right checksums half of the time.  The first byte says which.
 */
#include <errno.h>
#include <sys/socket.h>

#include "store/redis_impl.h"
#include "store/resp_front.h"
#include "tests/fuzz/repair.h"
#include "tests/unit/store_mem.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MOST = 64 << 10, KEYS = 3 };

/* A socket with these bytes, and nothing after them, to be read. */
static bool loaded(const uint8_t *data, size_t size, int fd[2])
{
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, fd))
		abort();
	for (size_t at = 0; at < size;) {
		ssize_t n = send(fd[1], data + at, size - at, MSG_DONTWAIT);

		if (n <= 0) {
			close(fd[0]);
			close(fd[1]);
			return false;
		}
		at += (size_t)n;
	}
	shutdown(fd[1], SHUT_WR);
	return true;
}

static void replies(const uint8_t *data, size_t size)
{
	struct resp_reply reply;
	struct resp r;
	struct ds_err err;
	int fd[2], rc;

	if (!loaded(data, size, fd))
		return;
	if (resp_open(&r, fd[0], "fuzz", &err))
		abort();
	do {
		rc = resp_reply(&r, &reply, &err);
		if (!rc)
			rc = resp_reply_skip(&r, &reply, MOST, &err);
	} while (!rc);
	if (rc != DS_PROTO && rc != DS_UNAVAILABLE)
		abort();
	resp_close(&r);
	close(fd[0]);
	close(fd[1]);
}

static void commands(const uint8_t *data, size_t size)
{
	struct resp_options o = { .max_value = 100000, .memory = 1 << 20, .stall_ns = 5000000 };
	struct mem_store *m = mem_store_new(false);
	struct resp_front *front;
	struct ds_err err;
	int fd[2], rc;

	if (resp_front_new(&front, &m->base, &o, &err))
		abort();
	if (loaded(data, size, fd)) {
		rc = resp_serve(front, fd[0], "fuzz", &err);
		if (rc && rc != DS_PROTO && rc != DS_UNAVAILABLE && rc != DS_TEMP)
			abort();
		close(fd[0]);
		close(fd[1]);
	}
	resp_front_free(front);
	store_close(&m->base);
}

/* ---- the backends ---- */

static uint8_t *into;

static void *place(void *ctx, size_t i, const struct store_item *item)
{
	(void)ctx;
	(void)i;
	free(into);
	return into = malloc(item->size + 1);
}

static bool done(void *ctx, size_t i)
{
	(void)i;
	return ++*(size_t *)ctx < KEYS;
}

static void ask(struct redis_session *ss, unsigned what)
{
	struct store_key keys[KEYS] = { { { 0 } } };
	struct iovec iov = { (void *)(uintptr_t)"payload", 7 };
	struct store_put p = { .key = keys[0], .iov = &iov, .iovs = 1 };
	size_t count = 0, n;
	struct store_sink sink = { &count, place, done };
	enum store_put_result how;
	struct store_stat st;
	struct ds_err err;
	uint8_t here[KEYS];
	bool was;

	memset(keys[1].b, 0x11, sizeof keys[1].b);
	if (what % 5 == 0 && store_get(&ss->base, keys, KEYS, &sink, &n, &err) == 0 && n != count)
		abort();
	if (what % 5 == 1 && store_has(&ss->base, keys, KEYS, here, &n, &err) == 0 && n > KEYS)
		abort();
	if (what % 5 == 2)
		store_put(&ss->base, &p, &how, &err);
	if (what % 5 == 3)
		store_del(&ss->base, keys, &was, &err);
	if (what % 5 == 4)
		store_stat(&ss->base, &st, &err);
}

/* The map and the redirections of a cluster; nobody is connected to. */
static void map(struct redis_session *ss, const uint8_t *data, size_t size)
{
	static const struct store_key any;
	struct redis_node *node;
	char *text = mem_calloc(size + 1, 1);
	struct ds_err err;
	bool asking;

	if (!text)
		abort();
	if (size)
		memcpy(text, data, size);
	ss->slots = mem_calloc(REDIS_SLOTS, sizeof *ss->slots);
	ss->stale = true;
	if (redis_node_of(ss, &any, &node, &err) == 0 && node->fd < -1)
		abort();
	redis_redirect(ss, ss->nodes[0], text, &node, &asking);
	free(text);
}

static void answers(unsigned what, const uint8_t *data, size_t size)
{
	static const struct store_options o = { .max_frame = 1 << 20 };
	struct store *s;
	struct redis_session *ss;
	struct redis_node *node;
	struct ds_err err;
	int fd[2];

	if (store_redis.open(&s, "unix:/nonexistent/socket", &o, &err) ||
		store_begin((struct store_session **)&ss, s, &err))
		abort();
	node = ss->nodes[0];
	if (loaded(data, size, fd)) {
		node->fd = fd[0];
		if (resp_open(&node->r, fd[0], "fuzz", &err))
			abort();
		if (what % 6 == 5)
			map(ss, data, size);
		else
			ask(ss, what % 6);
		close(fd[1]);
	}
	store_end(&ss->base);
	store_close(s);
	free(into);
	into = NULL;
}

/* Two values, of which the first is all the bytes made a frame. */
static void values(const uint8_t *data, size_t size)
{
	uint8_t *p = malloc(size + 100);
	size_t n;

	if (!p)
		abort();
	n = (size_t)snprintf((char *)p, 50, "$%zu\r\n", size);
	memcpy(p + n, data, size);
	repair(p + n, size);
	memcpy(p + n + size, "\r\n$-1\r\n:1\r\n", 11);
	answers(0, p, n + size + 11);
	free(p);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	unsigned kind;

	if (size < 1 || size > MOST)
		return 0;
	kind = *data++;
	size--;
	if (kind % 4 == 0)
		replies(data, size);
	else if (kind % 4 == 1)
		commands(data, size);
	else if (kind % 4 == 2)
		answers(kind / 4, data, size);
	else if (size)
		values(data, size);
	return 0;
}
