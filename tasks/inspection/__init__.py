"""What an output holds, for people who want to look before they train."""
