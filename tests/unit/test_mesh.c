/* The mesh: messages, puts, descriptors, connections that come and go; over unix and TCP sockets. */
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include "meshes.h"

/* ---- messages and puts ---- */

static void test_messages(bool tcp)
{
	enum { N = 400, BIG = 3 << 20 };
	struct pair p;
	uint8_t *data = malloc(BIG);
	bool ok = true;

	pair_start(&p, tcp, 5000 * MS);
	p.h[0].verify = p.h[1].verify = true;
	for (unsigned i = 0; i < N; i++) {
		size_t n = i == 7 ? BIG : i % 5 == 0 ? 0 : random_bits(1, i) % (i % 50 == 1 ? 300000 : 300);

		fill(data, n, i);
		send_one(p.m[0], 1, i, data, n);
		send_one(p.m[1], 0, i, data, n);
	}
	for (size_t i = 0; i < 2; i++)
		ok = ok && await(&p.h[i], &p.h[i].messages, N) && !p.h[i].wrong &&
			look(&p.h[i], &p.h[i].messages) == N && !look(&p.h[i], &p.h[i].lost);
	tap_ok(ok, "%s: messages both ways, of 0 bytes to 3 MiB, whole and in order", tcp ? "tcp" : "unix");
	pair_stop(&p);
	free(data);
}

static void test_puts(bool tcp)
{
	enum { BIG = 40 << 20 };
	struct pair p;
	struct mesh_put h;
	uint8_t *data = malloc(BIG);
	int64_t t;
	bool came;

	pair_start(&p, tcp, 5000 * MS);
	p.h[1].place = malloc(BIG);
	p.h[1].verify = true;
	for (size_t i = 0; i < 60; i++) {
		size_t n = i % 3 == 0 ? 0 : random_bits(2, i) % 100000;

		fill(data, n, i);
		h = a_put(i, n);
		mesh_put(p.m[0], 1, &h, data, 0);
		await(&p.h[1], &p.h[1].puts, i + 1);
	}
	tap_ok(p.h[1].puts == 60 && !p.h[1].wrong, "%s: puts lie where they were asked for", tcp ? "tcp" : "unix");

	fill(data, BIG, 7);
	h = a_put(7, BIG);
	mesh_put(p.m[0], 1, &h, data, 0);
	for (unsigned i = 0; i < 20; i++)
		send_one(p.m[0], 1, i, NULL, 0);
	tap_ok(await(&p.h[1], &p.h[1].puts, 61) && await(&p.h[1], &p.h[1].messages, 20) && !p.h[1].wrong,
		"a message does not cut a put that is half sent");

	p.h[1].messages = 0;
	t = time_mono_ns();
	h = a_put(7, BIG / 40);
	mesh_put(p.m[0], 1, &h, data, t + 300 * MS);
	mesh_put(p.m[0], 1, &h, data, 0);
	send_one(p.m[0], 1, 0, NULL, 0);
	tap_ok(await(&p.h[1], &p.h[1].messages, 1) && p.h[1].when - t < 200 * MS && look(&p.h[1], &p.h[1].puts) == 61,
		"a message overtakes puts that are held back");
	came = await(&p.h[1], &p.h[1].puts, 63);
	tap_ok(came && p.h[1].when - t >= 300 * MS && p.h[1].when - t < 800 * MS &&
		!p.h[1].wrong, "which come when they are due, the one behind it not before (%.1f ms)",
		(double)(p.h[1].when - t) * 1e-6);

	free(p.h[1].place);
	p.h[1].place = NULL;
	h = a_put(7, BIG);
	mesh_put(p.m[0], 1, &h, data, 0);
	send_one(p.m[0], 1, 1, NULL, 0);
	while (look(&p.h[1], &p.h[1].messages) < 2 && !look(&p.h[1], &p.h[1].lost))
		nap(MS);
	mesh_put(p.m[0], 1, &h, data, 0);
	mesh_forget(p.m[0]); /* what follows is sent after a half-sent one */
	send_one(p.m[0], 1, 2, NULL, 0);
	tap_ok(await(&p.h[1], &p.h[1].messages, 3) && p.h[1].type == 2 && p.h[1].puts == 63,
		"a put that nobody wants is read and dropped");
	p.h[1].refuse = true;
	mesh_put(p.m[0], 1, &h, data, 0);
	came = await(&p.h[1], &p.h[1].lost, 1);
	tap_ok(came && p.h[1].why.code == DS_PROTO && strstr(p.h[1].why.text, "it sent a put"),
		"a put that is refused is the end: %s", p.h[1].why.text);
	pair_stop(&p);
	free(data);
}

static void test_last_words(bool tcp)
{
	enum { BIG = 5 << 20 };
	struct heard h;
	struct mesh *m = start(&h, 0, 60000 * MS), *other;
	struct heard oh;
	uint8_t *data = malloc(BIG);
	int fd[2];
	bool came;

	join(fd, tcp);
	other = start(&oh, 1, 60000 * MS);
	mesh_add(m, 1, fd[0]);
	h.verify = true;
	mesh_add(other, 0, fd[1]);
	fill(data, BIG, 0);
	send_one(other, 0, 0, data, BIG);
	fill(data, 10, 1);
	send_one(other, 0, 1, data, 10);
	mesh_free(other);
	came = await(&h, &h.lost, 1);
	tap_ok(came && h.messages == 2 && !h.wrong, "%s: what was sent last is read before the end",
		tcp ? "tcp" : "unix");
	mesh_free(m);
	free(data);
}


static void test_forget(void)
{
	enum { BIG = 8 << 20 };
	uint8_t *data = malloc(BIG), *got = malloc(BIG + HEAD), head[2 * HEAD];
	struct mesh_put h = a_put(3, BIG), held = a_put(4, BIG);
	struct heard heard;
	struct mesh *m = start(&heard, 0, 5000 * MS);
	int fd[2];

	join(fd, false);
	mesh_add(m, 1, fd[0]);
	mesh_forget(m);
	fill(data, BIG, 3);
	mesh_put(m, 1, &h, data, 0);
	for (int i = 0; i < 3; i++)
		mesh_put(m, 1, &held, data, i == 0 ? 0 : time_mono_ns() + 10 * MS);
	nap(50 * MS);
	mesh_forget(m);
	memset(data, 0xee, BIG);
	send_one(m, 1, 9, NULL, 0);
	tap_ok(read_all(fd[1], got, BIG + HEAD) && filled(got + HEAD, BIG, 3),
		"what was half sent is sent on from a copy");
	tap_ok(read_all(fd[1], head, HEAD) && head[0] == 9 && poll(&(struct pollfd){ fd[1], POLLIN, 0 }, 1, 50) == 0,
		"what was not begun is never sent");
	mesh_free(m);
	close(fd[1]);
	free(data);
	free(got);
}

static void test_pieces(void)
{
	struct heard h;
	struct mesh *m = start(&h, 0, 60000 * MS);
	uint8_t bytes[3 * (HEAD + 100)];
	int fd[2];

	join(fd, false);
	mesh_add(m, 1, fd[0]);
	h.verify = true;
	for (unsigned i = 0; i < 3; i++) {
		head_of(bytes + i * (HEAD + 100), i, 0, 100);
		fill(bytes + i * (HEAD + 100) + HEAD, 100, i);
	}
	for (size_t i = 0; i < sizeof(bytes); i++) {
		send_raw(fd[1], bytes + i, 1, 0);
		if (i % 10 == 0)
			nap(MS / 5);
	}
	tap_ok(await(&h, &h.messages, 3) && !h.wrong, "messages that come a byte at a time");
	mesh_free(m);
	close(fd[1]);
}


struct sender { struct mesh *m; unsigned type; };

static void *send_many(void *arg)
{
	struct sender *s = arg;

	for (uint32_t i = 0; i < 500; i++)
		send_one(s->m, 1, s->type, &i, sizeof(i));
	return NULL;
}

static uint32_t next_of[4];
static bool out_of_order;

static void on_numbered(void *ctx, size_t from, unsigned type, const void *data, size_t n, const int *fds,
	size_t count)
{
	uint32_t i;

	memcpy(&i, data, sizeof(i));
	out_of_order = out_of_order || n != sizeof(i) || i != next_of[type]++;
	on_message(ctx, from, type, data, n, fds, count);
}

static void test_threads(void)
{
	static const struct mesh_ops numbered = { on_numbered, on_put, on_put_done, on_lost, on_timer };
	struct sender s[4];
	pthread_t t[4];
	struct pair p;
	struct mesh_config c = { .rank = 1, .world = 3, .peer_timeout_ns = 5000 * MS, .ops = &numbered,
		.ctx = &p.h[1] };
	struct ds_err err;
	int fd[2];

	join(fd, false);
	p.m[0] = start(&p.h[0], 0, 5000 * MS);
	mesh_free(start(&p.h[1], 1, 5000 * MS));
	if (mesh_new(&p.m[1], &c, &err))
		tap_bail("%s", err.text);
	mesh_add(p.m[0], 1, fd[0]);
	mesh_add(p.m[1], 0, fd[1]);
	for (unsigned i = 0; i < 4; i++) {
		s[i] = (struct sender){ p.m[0], i };
		pthread_create(&t[i], NULL, send_many, &s[i]);
	}
	for (unsigned i = 0; i < 4; i++)
		pthread_join(t[i], NULL);
	tap_ok(await(&p.h[1], &p.h[1].messages, 2000) && !out_of_order, "four threads send at once, each in its order");
	pair_stop(&p);
}

/* ---- descriptors ---- */

static void test_fds(void)
{
	size_t before = open_fds();
	struct pair p;
	struct ds_err err;
	int pipes[2];
	bool ok = true;

	pair_start(&p, false, 5000 * MS);
	for (uint64_t i = 0; i < 100 && ok; i++) {
		uint64_t got = 0;

		for (unsigned k = 0; k < i % 4; k++)
			send_one(p.m[0], 1, 1, "x", 1);
		if (pipe(pipes))
			tap_bail("pipe");
		ok = !mesh_send(p.m[0], 1, 2, &i, sizeof(i), (int[]){ pipes[0], pipes[0], pipes[0] }, 1 + i % 3, &err);
		close(pipes[0]);
		send_one(p.m[0], 1, 3, NULL, 0);
		ok = ok && await(&p.h[1], &p.h[1].threes, i + 1);
		ok = ok && write(pipes[1], &i, sizeof(i)) == sizeof(i) &&
			read(p.h[1].fd, &got, sizeof(got)) == sizeof(got) &&
			got == i && (fcntl(p.h[1].fd, F_GETFD) & FD_CLOEXEC) && p.h[1].fds == 1 + i % 3;
		close(pipes[1]);
		pthread_mutex_lock(&p.h[1].lock);
		p.h[1].fds = 0;
		pthread_mutex_unlock(&p.h[1].lock);
	}
	tap_ok(ok, "descriptors come with their message, close-on-exec");
	ok = !mesh_send(p.m[0], 2, 2, NULL, 0, (int[]){ 1 }, 1, &err);
	tap_ok(ok, "nothing happens to a message to a peer that is not connected");
	tap_ok(mesh_send(p.m[0], 1, 2, NULL, 0, (int[]){ 999999 }, 1, &err) == DS_OS, "a bad descriptor: %s", err.text);
	tap_ok(mesh_send(p.m[0], 1, MESH_TYPES, NULL, 0, NULL, 0, &err) == DS_BUG, "a type that cannot be");
	/* descriptors on their way when both ends close */
	for (int i = 0; i < 20; i++)
		mesh_send(p.m[0], 1, 2, NULL, 0, (int[]){ 1, 1, 1, 1 }, 4, &err);
	pair_stop(&p);
	tap_is_int((long long)open_fds(), (long long)before, "no descriptor is left open");
}

/* ---- connections come and go ---- */

static void test_again(void)
{
	size_t before = open_fds();
	struct heard h;
	struct mesh *m = start(&h, 0, 60000 * MS);
	uint8_t byte;
	int fd[2], old = -1;
	bool ok = true;

	for (int i = 0; i < 50; i++) {
		join(fd, i % 2);
		mesh_add(m, 1, fd[0]);
		send_one(m, 1, (unsigned)i, NULL, 0);
		ok = ok && read(fd[1], &byte, 1) == 1 && byte == i;
		if (old >= 0) {
			uint8_t rest[HEAD];

			ok = ok && read_all(old, rest, HEAD - 1) && read(old, rest, 1) == 0;
			close(old);
		}
		old = fd[1];
	}
	mesh_drop(m, 1);
	mesh_drop(m, 1);
	nap(20 * MS);
	tap_ok(ok && !look(&h, &h.lost), "a new connection takes the place of the old one, which is not called lost");
	close(old);
	mesh_free(m);
	tap_is_int((long long)open_fds(), (long long)before, "each is closed");
}

/* The fault: what was meant for a process that has died went to the one that came in its place. */
static void test_put_late(void)
{
	struct mesh_put h = a_put(3, 100);
	uint8_t data[100], got[HEAD + 100];
	struct heard heard;
	struct mesh *m = start(&heard, 0, 60000 * MS);
	int old[2], new[2];

	fill(data, sizeof(data), 3);
	join(old, true);
	join(new, true);
	mesh_add(m, 1, old[0]);
	mesh_forget(m);
	mesh_add(m, 1, new[0]);
	mesh_put(m, 1, &h, data, 0);
	send_one(m, 1, 9, NULL, 0);
	tap_ok(read_all(new[1], got, HEAD) && got[0] == 9 && poll(&(struct pollfd){ new[1], POLLIN, 0 }, 1, 50) == 0,
		"a put does not leave over a connection that its sender does not know of");
	mesh_forget(m);
	mesh_put(m, 1, &h, data, 0);
	tap_ok(read_all(new[1], got, sizeof(got)) && filled(got + HEAD, sizeof(data), 3),
		"and does when it knows of it");
	mesh_free(m);
	close(old[1]);
	close(new[1]);
}

static atomic_int calls;

static void called(void *arg)
{
	calls++;
	if (arg) {
		struct ds_err err;

		mesh_call(arg, called, NULL, &err);
	}
}

static void watched(void *arg, int fd, uint32_t events)
{
	struct ds_err err;
	uint64_t n;

	if (events & EPOLLIN && read(fd, &n, sizeof(n)) == sizeof(n) && n == 7) {
		mesh_watch(arg, fd, 0, NULL, NULL, &err);
		calls += 100;
	} else {
		calls += 10;
	}
}

static void test_rest(void)
{
	struct heard h;
	struct mesh *m = start(&h, 0, 60000 * MS);
	struct ds_err err;
	int64_t t = time_mono_ns();
	int fd = eventfd(0, EFD_CLOEXEC);

	mesh_timer(m, t + 900 * MS);
	mesh_timer(m, t + 100 * MS);
	tap_ok(await(&h, &h.timers, 1) && h.when - t >= 100 * MS && h.when - t < 500 * MS, "the timer");
	mesh_timer(m, t + 200 * MS);
	mesh_timer(m, 0);
	mesh_call(m, called, m, &err);
	nap(300 * MS);
	tap_ok(look(&h, &h.timers) == 1, "comes once, and not when it was taken back");
	tap_is_int(calls, 2, "calls, also from calls");
	calls = 0;
	mesh_watch(m, fd, EPOLLIN, watched, m, &err);
	for (uint64_t n = 3; n < 10; n += 4) {
		(void)!write(fd, &n, sizeof(n));
		nap(50 * MS);
	}
	(void)!write(fd, &(uint64_t){ 1 }, 8);
	nap(50 * MS);
	tap_is_int(calls, 110, "a descriptor is watched, and no more when it is asked so");
	tap_ok(mesh_watch(m, -1, EPOLLIN, watched, m, &err) == DS_OS, "one that cannot be: %s", err.text);
	tap_is_int(mesh_peer_timeout(m), 60000 * MS, "its timeout");
	close(fd);
	mesh_free(m);
	mesh_free(NULL);
}

/* The fault: a number of milliseconds that no int holds. */
static void test_years(void)
{
	int fd[2], ms = 0, idle = 0;
	socklen_t n = sizeof(int);
	struct heard h;
	struct mesh *m = start(&h, 0, INT64_C(8000000000000000000));

	join(fd, true);
	mesh_add(m, 1, fd[0]);
	getsockopt(fd[0], IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, &n);
	getsockopt(fd[0], IPPROTO_TCP, TCP_KEEPIDLE, &idle, &n);
	tap_ok(ms >= 3600000 && idle >= 3600, "a timeout of years: %d ms, %d s are what the kernel is told", ms, idle);
	mesh_free(m);
	close(fd[1]);
}

int main(void)
{
	for (int tcp = 0; tcp < 2; tcp++) {
		test_messages(tcp);
		test_puts(tcp);
		test_last_words(tcp);
	}
	test_forget();
	test_threads();
	test_fds();
	test_pieces();
	test_again();
	test_put_late();
	test_rest();
	test_years();
	return tap_done();
}
