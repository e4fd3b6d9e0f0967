/* A page for who asks by HTTP: a monitor, a load balancer.  One request a connection. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "base/time.h"
#include "serve/store_service_impl.h"

enum { REQUEST_MAX = 8 << 10 };
#define REQUEST_NS ((int64_t)5000000000)

/* Reads up to the blank line; false: it does not come. */
static bool read_request(int fd, char *p, size_t cap)
{
	int64_t until = time_mono_ns() + REQUEST_NS;
	size_t n = 0;

	while (n + 1 < cap && time_mono_ns() < until) {
		ssize_t got = recv(fd, p + n, cap - 1 - n, 0);

		if (got <= 0 && !(got < 0 && errno == EINTR))
			return false;
		n += got > 0 ? (size_t)got : 0;
		p[n] = 0;
		if (strstr(p, "\r\n\r\n") || strstr(p, "\n\n"))
			return true;
	}
	return false;
}

static void send_all(int fd, const char *p, size_t n)
{
	while (n) {
		ssize_t sent = send(fd, p, n, MSG_NOSIGNAL);

		if (sent <= 0 && !(sent < 0 && errno == EINTR))
			return;
		p += sent > 0 ? sent : 0;
		n -= sent > 0 ? (size_t)sent : 0;
	}
}

static const char *reason(int status)
{
	return status == 200 ? "OK" : status == 404 ? "Not Found" : status == 405 ? "Method Not Allowed" :
		status == 400 ? "Bad Request" : "Service Unavailable";
}

void http_answer(int fd, int (*page)(void *ctx, const char *path, struct buf *b), void *ctx)
{
	char request[REQUEST_MAX], method[8], path[256];
	struct buf body = { 0 }, head = { 0 };
	int status;

	if (!read_request(fd, request, sizeof request))
		return;
	if (sscanf(request, "%7[A-Z] %255[^ ?\r\n]", method, path) != 2)
		status = 400;
	else if (strcmp(method, "GET") != 0 && strcmp(method, "HEAD") != 0)
		status = 405;
	else
		status = page(ctx, path, &body);
	if (status == 400 || status == 404 || status == 405)
		buf_printf(&body, "%s\n", reason(status));
	buf_printf(&head, "HTTP/1.1 %d %s\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
		"Content-Length: %zu\r\nConnection: close\r\n\r\n", status, reason(status), body.len);
	if (!head.nomem && !body.nomem) {
		send_all(fd, head.p, head.len);
		if (body.len && strcmp(method, "HEAD") != 0)
			send_all(fd, body.p, body.len);
	}
	shutdown(fd, SHUT_WR);
	buf_free(&head);
	buf_free(&body);
}
