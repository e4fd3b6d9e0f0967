/* Two meshes in one process, and what they tell, for tests. */
#ifndef DS_TESTS_MESHES_H
#define DS_TESTS_MESHES_H

#include <pthread.h>
#include <sys/socket.h>

#include "base/random.h"
#include "base/time.h"
#include "ep/mesh.h"
#include "processes.h"
#include "tap.h"

enum { HEAD = 48 }; /* bytes before each message */

/* What a mesh told. */
struct heard {
	pthread_mutex_t lock;
	pthread_cond_t cond;
	size_t messages, puts, lost, timers, fds, threes;
	unsigned type;                /* of the last message */
	size_t bytes;                 /* of it */
	bool wrong, verify;           /* contents that are not what fill() made */
	int fd;                       /* the last descriptor */
	int64_t when, lost_when;
	struct ds_err why;
	uint8_t *place;               /* where puts go; NULL: nowhere */
	bool refuse;
};

TAP_USED static void fill(uint8_t *p, size_t n, uint64_t seed)
{
	for (size_t i = 0; i < n; i += 8) {
		uint64_t v = random_bits(seed, i);

		memcpy(p + i, &v, n - i < 8 ? n - i : 8);
	}
}

TAP_USED static bool filled(const uint8_t *p, size_t n, uint64_t seed)
{
	for (size_t i = 0; i < n; i += 8) {
		uint64_t v = random_bits(seed, i);

		if (memcmp(p + i, &v, n - i < 8 ? n - i : 8))
			return false;
	}
	return true;
}

TAP_USED static void on_message(void *ctx, size_t from, unsigned type, const void *data, size_t n, const int *fds,
	size_t count)
{
	struct heard *h = ctx;

	(void)from;
	pthread_mutex_lock(&h->lock);
	h->wrong = h->wrong || (uintptr_t)data % 8 || (h->verify && (type != h->messages || !filled(data, n, type)));
	h->messages++;
	h->type = type;
	h->threes += type == 3;
	h->bytes = n;
	h->when = time_mono_ns();
	for (size_t i = 0; i < count; i++) {
		if (h->fd >= 0)
			close(h->fd);
		h->fd = fds[i];
	}
	h->fds += count;
	pthread_cond_signal(&h->cond);
	pthread_mutex_unlock(&h->lock);
}

TAP_USED static void *on_put(void *ctx, size_t from, const struct mesh_put *p)
{
	struct heard *h = ctx;

	(void)from, (void)p;
	return h->refuse ? MESH_REFUSED : h->place;
}

TAP_USED static void on_put_done(void *ctx, size_t from, const struct mesh_put *p)
{
	struct heard *h = ctx;

	(void)from;
	pthread_mutex_lock(&h->lock);
	h->wrong = h->wrong || (h->verify && !filled(h->place, (size_t)p->bytes, p->seq)) || p->epoch != p->seq + 1 ||
		p->kind != 2 || p->lane != 1;
	h->puts++;
	h->when = time_mono_ns();
	pthread_cond_signal(&h->cond);
	pthread_mutex_unlock(&h->lock);
}

TAP_USED static void on_lost(void *ctx, size_t from, const struct ds_err *why)
{
	struct heard *h = ctx;

	(void)from;
	pthread_mutex_lock(&h->lock);
	h->lost++;
	h->lost_when = time_mono_ns();
	h->why = *why;
	pthread_cond_signal(&h->cond);
	pthread_mutex_unlock(&h->lock);
}

TAP_USED static void on_timer(void *ctx)
{
	struct heard *h = ctx;

	pthread_mutex_lock(&h->lock);
	h->timers++;
	h->when = time_mono_ns();
	pthread_cond_signal(&h->cond);
	pthread_mutex_unlock(&h->lock);
}

static const struct mesh_ops ops = { on_message, on_put, on_put_done, on_lost, on_timer };

/* Until *what is at least n; false after ten seconds. */
TAP_USED static bool await(struct heard *h, const size_t *what, size_t n)
{
	struct timespec t;
	bool there;

	clock_gettime(CLOCK_REALTIME, &t);
	t.tv_sec += 10;
	pthread_mutex_lock(&h->lock);
	while (*what < n && !pthread_cond_timedwait(&h->cond, &h->lock, &t))
		;
	there = *what >= n;
	pthread_mutex_unlock(&h->lock);
	return there;
}

TAP_USED static size_t look(struct heard *h, const size_t *what)
{
	size_t n;

	pthread_mutex_lock(&h->lock);
	n = *what;
	pthread_mutex_unlock(&h->lock);
	return n;
}

TAP_USED static struct mesh *start(struct heard *h, size_t rank, int64_t timeout)
{
	struct mesh_config c = { .rank = rank, .world = 3, .peer_timeout_ns = timeout, .ops = &ops, .ctx = h };
	struct ds_err err;
	struct mesh *m;

	*h = (struct heard){ .lock = PTHREAD_MUTEX_INITIALIZER, .cond = PTHREAD_COND_INITIALIZER, .fd = -1 };
	if (mesh_new(&m, &c, &err))
		tap_bail("%s", err.text);
	return m;
}

TAP_USED static void join(int fd[2], bool tcp)
{
	if (socket_pair(fd, tcp))
		tap_bail("no pair of sockets");
}

struct pair { struct mesh *m[2]; struct heard h[2]; };

TAP_USED static void pair_start(struct pair *p, bool tcp, int64_t timeout)
{
	int fd[2];

	join(fd, tcp);
	for (size_t i = 0; i < 2; i++) {
		p->m[i] = start(&p->h[i], i, timeout);
		mesh_add(p->m[i], 1 - i, fd[i]);
		mesh_forget(p->m[i]); /* puts may go there */
	}
}

TAP_USED static void pair_stop(struct pair *p)
{
	mesh_free(p->m[0]);
	mesh_free(p->m[1]);
	for (size_t i = 0; i < 2; i++)
		if (p->h[i].fd >= 0)
			close(p->h[i].fd);
}

TAP_USED static void send_one(struct mesh *m, size_t peer, unsigned type, const void *p, size_t n)
{
	struct ds_err err;

	if (mesh_send(m, peer, type, p, n, NULL, 0, &err))
		tap_bail("%s", err.text);
}

TAP_USED static struct mesh_put a_put(uint64_t seq, size_t n)
{
	return (struct mesh_put){ .epoch = seq + 1, .seq = seq, .kind = 2, .lane = 1, .bytes = n };
}

TAP_USED static bool read_all(int fd, uint8_t *p, size_t n)
{
	while (n) {
		ssize_t k = read(fd, p, n);

		if (k <= 0)
			return false;
		p += k;
		n -= (size_t)k;
	}
	return true;
}

TAP_USED static void head_of(uint8_t *head, uint32_t type, uint32_t fds, uint64_t bytes)
{
	memset(head, 0, HEAD);
	memcpy(head, &type, 4);
	memcpy(head + 4, &fds, 4);
	memcpy(head + 32, &bytes, 8);
}

TAP_USED static void send_raw(int fd, const void *p, size_t n, size_t fds)
{
	union { char space[CMSG_SPACE(8 * sizeof(int))]; struct cmsghdr align; } c = { { 0 } };
	struct iovec iov = { NULL, n };
	struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1 };
	static uint8_t copy[4096];

	iov.iov_base = memcpy(copy, p, n);
	if (fds) {
		m.msg_control = c.space;
		m.msg_controllen = CMSG_SPACE(fds * sizeof(int));
		CMSG_FIRSTHDR(&m)->cmsg_level = SOL_SOCKET;
		CMSG_FIRSTHDR(&m)->cmsg_type = SCM_RIGHTS;
		CMSG_FIRSTHDR(&m)->cmsg_len = CMSG_LEN(fds * sizeof(int));
		for (size_t i = 0; i < fds; i++)
			memcpy(CMSG_DATA(CMSG_FIRSTHDR(&m)) + i * sizeof(int), &(int){ 1 }, sizeof(int));
	}
	sendmsg(fd, &m, MSG_NOSIGNAL);
}

#endif
