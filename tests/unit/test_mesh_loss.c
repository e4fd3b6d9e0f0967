/* The mesh: who is alive, who is lost and when that is known; peers that send nonsense. */
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "base/mem.h"
#include "meshes.h"

enum { TYPE_PUT = MESH_TYPES, TYPE_PING, TYPE_PONG }; /* as on the wire */

/* ---- life and death ---- */

static void test_gone(bool tcp)
{
	struct heard h;
	struct mesh *m = start(&h, 0, 60000 * MS);
	uint8_t data[1000] = { 0 };
	int fd[2];
	pid_t pid;
	int64_t t;
	bool came;

	join(fd, tcp);
	pid = fork();
	if (!pid) {
		close(fd[0]);
		pause();
	}
	close(fd[1]);
	mesh_add(m, 2, fd[0]);
	nap(20 * MS);
	t = time_mono_ns();
	kill(pid, SIGKILL);
	came = await(&h, &h.lost, 1);
	tap_ok(came && h.lost_when - t < 500 * MS && !strcmp(h.why.text, "connection closed") &&
		h.why.code == DS_UNAVAILABLE, "%s: killed: %s, after %.1f ms", tcp ? "tcp" : "unix", h.why.text,
		(double)(h.lost_when - t) * 1e-6);
	for (int i = 0; i < 5; i++)
		send_one(m, 2, 1, data, sizeof(data));
	waitpid(pid, NULL, 0);

	join(fd, tcp); /* written to until it breaks: no SIGPIPE, one loss */
	close(fd[1]);
	mesh_add(m, 2, fd[0]);
	for (int i = 0; i < 200; i++)
		send_one(m, 2, 1, data, sizeof(data));
	tap_ok(await(&h, &h.lost, 2), "a peer that is closed before it is written to");
	nap(20 * MS);
	tap_is_int((long long)look(&h, &h.lost), 2, "each loss is told once");
	mesh_free(m);
}

/* A process with a mesh of its own that spins or sleeps. */
static pid_t child_mesh(int fd, int other, bool spin)
{
	pid_t pid = fork();
	struct heard h;
	struct mesh *m;

	if (pid)
		return pid;
	close(other);
	m = start(&h, 1, 60000 * MS);
	mesh_add(m, 0, fd);
	while (spin)
		time_mono_ns();
	pause();
	_exit(0);
}

static void test_silence(bool tcp)
{
	struct ranks one = { { 0 } }, none = { { 0 } };
	int64_t timeout = 400 * MS, t;
	struct heard h;
	struct mesh *m;
	int fd[2];
	pid_t pid;
	bool came;

	ranks_add(&one, 1);
	join(fd, tcp);
	pid = child_mesh(fd[1], fd[0], true); /* before this process has threads */
	close(fd[1]);
	m = start(&h, 0, timeout);
	mesh_add(m, 1, fd[0]);
	mesh_expect(m, MESH_ASK_TRANSPORT, &one);
	nap(4 * timeout);
	tap_ok(!look(&h, &h.lost), "%s: a peer that computes is alive", tcp ? "tcp" : "unix");
	mesh_expect(m, MESH_ASK_TRANSPORT, &none);
	kill(pid, SIGSTOP);
	nap(3 * timeout);
	tap_ok(!look(&h, &h.lost), "nobody waits for one that is stopped: not lost");
	kill(pid, SIGCONT);
	mesh_expect(m, MESH_ASK_UNIT, &one);
	nap(2 * timeout);
	tap_ok(!look(&h, &h.lost), "it goes on, and is waited for: not lost");
	mesh_expect(m, MESH_ASK_TRANSPORT, &none);
	kill(pid, SIGSTOP);
	t = time_mono_ns();
	came = await(&h, &h.lost, 1);
	tap_ok(came && h.lost_when - t > timeout / 2 && h.lost_when - t < 2 * timeout &&
		!strcmp(h.why.text, "silent for 0.4 s"),
		"stopped and waited for by one of two: %s, after %.0f ms", h.why.text,
		(double)(h.lost_when - t) * 1e-6);
	mesh_free(m);
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
}

/* A process that waits for another is stopped itself, with a ping under way: it must hear the answer first. */
static void test_own_stop(void)
{
	struct ranks one = { { 0 } };
	int64_t timeout = 300 * MS;
	int fd[2], status = 0;
	pid_t peer, pid;

	join(fd, false);
	peer = child_mesh(fd[1], fd[0], false);
	pid = fork();
	if (!pid) {
		struct heard h;
		struct mesh *m = start(&h, 0, timeout);

		close(fd[1]);
		ranks_add(&one, 1);
		mesh_add(m, 1, fd[0]);
		mesh_expect(m, MESH_ASK_TRANSPORT, &one);
		nap(20 * timeout);
		_exit(look(&h, &h.lost) ? 1 : 0);
	}
	for (int i = 0; i < 4; i++) {
		nap(timeout / 4 + timeout * i / 20);
		kill(pid, SIGSTOP);
		if (i % 2)
			kill(peer, SIGSTOP); /* as a whole unit by the terminal */
		nap(2 * timeout);
		kill(pid, SIGCONT);
		nap(20 * MS);
		kill(peer, SIGCONT);
	}
	close(fd[0]);
	waitpid(pid, &status, 0);
	tap_ok(WIFEXITED(status) && WEXITSTATUS(status) == 0, "one that was stopped itself calls nobody lost");
	kill(peer, SIGKILL);
	waitpid(peer, NULL, 0);
	close(fd[1]);
}

static void test_quiet(void)
{
	struct ranks one = { { 0 } }, none = { { 0 } };
	struct heard h;
	struct mesh *m = start(&h, 0, 400 * MS);
	uint8_t head[HEAD], pong[HEAD] = { 2, 0, 1 };
	int fd[2];
	int64_t cpu;

	join(fd, false);
	mesh_add(m, 1, fd[0]);
	cpu = cpu_ns();
	tap_ok(!poll(&(struct pollfd){ fd[1], POLLIN, 0 }, 1, 1000), "nothing is sent where nobody is waited for");
	cpu = cpu_ns() - cpu;
	tap_ok(cpu < (tap_slow() ? 20 : 1) * MS, "and nothing is computed: %lld us in a second", (long long)cpu / 1000);
	ranks_add(&one, 1);
	mesh_expect(m, MESH_ASK_TRANSPORT, &one);
	for (int i = 0; i < 12; i++) {
		if (!read_all(fd[1], head, HEAD) || head[0] != 1 || head[2] != 1)
			break;
		if (write(fd[1], pong, HEAD) != HEAD)
			break;
	}
	tap_ok(head[0] == 1 && head[2] == 1 && !look(&h, &h.lost), "one that answers for three timeouts is not lost");
	mesh_expect(m, MESH_ASK_TRANSPORT, &none);
	nap(150 * MS);
	while (poll(&(struct pollfd){ fd[1], POLLIN, 0 }, 1, 0) > 0 && read(fd[1], head, HEAD) > 0)
		;
	tap_ok(!poll(&(struct pollfd){ fd[1], POLLIN, 0 }, 1, 400), "asked no more when it is waited for no more");
	mesh_free(m);
	close(fd[1]);
}

/* ---- others' nonsense ---- */

static void test_nonsense(void)
{
	static const struct { uint32_t type, fds; uint64_t bytes; size_t with; const char *says; } cases[] = {
		{ TYPE_PONG + 1, 0, 0, 0, "unknown type (65539)" },
		{ UINT32_MAX, 0, 0, 0, "unknown type" },
		{ 1, 0, MESH_MOST_BYTES + 1ull, 0, "67108865 bytes, more than" },
		{ 1, 0, UINT64_MAX, 0, "more than there can be" },
		{ TYPE_PING, 0, 1, 0, "more than there can be" },
		{ TYPE_PONG, 0, 1, 0, "more than there can be" },
		{ 1, 1, 0, 0, "0 descriptors with a message of 1" },
		{ 1, 0, 0, 1, "1 descriptors with a message of 0" },
		{ 1, 2, 0, 1, "1 descriptors with a message of 2" },
		{ 1, UINT32_MAX, 0, 4, "4 descriptors with a message of" },
		{ 1, 8, 0, 8, "descriptors" },
		{ TYPE_PUT, 1, 0, 1, "descriptors" },
		{ TYPE_PING, 2, 0, 2, "descriptors" },
	};
	size_t before = open_fds(), lost = 0;
	struct heard h;
	struct mesh *m = start(&h, 0, 60000 * MS);
	uint8_t head[HEAD];
	int fd[2];
	bool came;

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		join(fd, false);
		mesh_add(m, 1, fd[0]);
		head_of(head, cases[i].type, cases[i].fds, cases[i].bytes);
		send_raw(fd[1], head, HEAD, cases[i].with);
		came = await(&h, &h.lost, ++lost);
		tap_ok(came && h.why.code == DS_PROTO && strstr(h.why.text, cases[i].says), "nonsense: %s", h.why.text);
		close(fd[1]);
	}
	for (uint64_t i = 0; i < 300; i++) { /* anything at all */
		uint8_t bytes[200];

		join(fd, false);
		mesh_add(m, 1, fd[0]);
		fill(bytes, sizeof(bytes), i);
		if (i % 3 == 0)
			memset(bytes + i % 40, 0, 40);
		if (i % 2)
			bytes[2] = bytes[3] = 0;
		send_raw(fd[1], bytes, 1 + i % 200, i % 7 == 6 ? 3 : 0);
		close(fd[1]);
		lost++;
		if (!await(&h, &h.lost, lost))
			break;
	}
	tap_ok(h.lost == lost, "random bytes end in a loss, every time");
	mesh_free(m);
	if (h.fd >= 0)
		close(h.fd);
	tap_is_int((long long)open_fds(), (long long)before, "and leave no descriptor");
}

/* Descriptors that this process has no room for are not the sender's fault. */
static void test_no_descriptors(void)
{
	struct rlimit all, few;
	int fd[2], first, last;
	struct heard h;
	struct mesh *m = start(&h, 0, 60000 * MS);
	uint8_t head[HEAD];

	getrlimit(RLIMIT_NOFILE, &all);
	few = all;
	few.rlim_cur = 64;
	for (int left = 0; left < 2; left++) {
		join(fd, false);
		mesh_add(m, 1, fd[0]);
		head_of(head, 1, 2, 0);
		setrlimit(RLIMIT_NOFILE, &few);
		first = last = dup(1);
		for (int more = first; more >= 0; more = dup(1))
			last = more;
		for (int i = 0; i < left; i++)
			close(last--);
		send_raw(fd[1], head, HEAD, 2);
		tap_ok(await(&h, &h.lost, (size_t)left + 1) && h.why.code == DS_OS &&
			!strcmp(h.why.text, "no descriptor is left for what it sent; raise ulimit -n"),
			"%d descriptors left for two: %s", left, h.why.text);
		while (last >= first)
			close(last--);
		setrlimit(RLIMIT_NOFILE, &all);
		close(fd[1]);
	}
	mesh_free(m);
}

int main(void)
{
	test_own_stop();
	for (int tcp = 0; tcp < 2; tcp++) {
		test_silence(tcp);
		test_gone(tcp);
	}
	test_quiet();
	test_no_descriptors();
	test_nonsense();
	return tap_done();
}
