// The limit: a server that does nothing but receive and send. It answers every query with one A record, without a look at
// it, in batches of 32, and so costs what the kernel costs. Usage: echo ADDRESS PORT
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

enum { BATCH = 32, SIZE = 4096 };

static const unsigned char record[16] = {0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 30, 0, 4, 192, 0, 2, 1};

int main(int argc, char **argv) {
	static unsigned char buffers[BATCH][SIZE + sizeof record];
	static struct sockaddr_in from[BATCH];
	struct mmsghdr messages[BATCH];
	struct iovec vectors[BATCH];
	if (argc != 3) return 2;
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[2]))};
	int fd = socket(AF_INET, SOCK_DGRAM, 0), size = 4 << 20;
	if (!inet_aton(argv[1], &at.sin_addr) || bind(fd, (struct sockaddr *)&at, sizeof at)) return 1;
	setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &size, sizeof size);
	for (;;) {
		memset(messages, 0, sizeof messages);
		for (int i = 0; i < BATCH; i++) {
			vectors[i] = (struct iovec){buffers[i], SIZE};
			messages[i].msg_hdr = (struct msghdr){.msg_name = &from[i], .msg_namelen = sizeof from[i], .msg_iov = &vectors[i], .msg_iovlen = 1};
		}
		int n = recvmmsg(fd, messages, BATCH, MSG_WAITFORONE, 0);
		for (int i = 0; i < n; i++) {
			unsigned char *reply = buffers[i];
			reply[2] |= 0x84; // QR, AA
			reply[7] = 1;     // one answer
			memcpy(reply + messages[i].msg_len, record, sizeof record);
			vectors[i].iov_len = messages[i].msg_len + sizeof record;
		}
		for (int sent = 0; sent < n;) {
			int k = sendmmsg(fd, messages + sent, n - sent, 0);
			sent += k > 0 ? k : 1;
		}
	}
}
